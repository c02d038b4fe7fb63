package definitions

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// Pool is a pool of addresses. Services get addresses from it through "auto" (the pool named
// default) or "auto:NAME" in their vips.
type Pool struct {
	Name string `json:"name"`
	// CIDRs lists the networks of the pool. It is never nil.
	CIDRs []netip.Prefix `json:"cidrs"`
	// Size is the number of addresses that the pool can allocate. It counts at most about 2^48
	// addresses of each IPv6 network. Held is the number of addresses that services hold. Free is
	// the number of addresses that no service holds or names in its definition.
	Size uint64 `json:"size"`
	Held uint64 `json:"held"`
	Free uint64 `json:"free"`
	// Revision is the revision at which the pool last changed.
	Revision int64 `json:"revision"`
	// Problem is the reason why the pool is unusable, or "".
	Problem string `json:"problem,omitempty"`
}

// Pools returns all pools, sorted by name.
func (w *Writer) Pools(ctx context.Context) ([]Pool, error) {
	b, err := readHeld(ctx, w.client)
	if err == nil {
		err = b.readRest(ctx, w.client)
	}
	if err != nil {
		return nil, err
	}
	var out []Pool
	for _, p := range b.pools {
		pool := Pool{Name: p.name, CIDRs: append([]netip.Prefix{}, p.cidrs...), Revision: p.revision, Problem: p.wrong}
		if p.wrong == "" {
			pool.Size = p.size()
			pool.Free = pool.Size
		}
		for a := range b.held {
			if p.holds(a) {
				pool.Held++
			}
			if p.wrong == "" && p.gives(a) {
				pool.Free--
			}
		}
		for a := range b.claimed {
			if _, held := b.held[a]; !held && p.wrong == "" && p.gives(a) {
				pool.Free--
			}
		}
		out = append(out, pool)
	}
	slices.SortFunc(out, func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// Holds reports whether a service holds addresses from pools. The service need not exist, because
// its key may have been removed manually.
func (w *Writer) Holds(ctx context.Context, name balancer.Name) (bool, error) {
	b, err := readHeld(ctx, w.client)
	return err == nil && len(b.byService[name]) > 0, err
}

// SetPool replaces a pool's networks, or removes the pool if cidrs is nil. It refuses to remove
// addresses that services hold. The error names these services.
func (w *Writer) SetPool(ctx context.Context, name string, cidrs []netip.Prefix) (client.Result, error) {
	if !balancer.Name(name).Valid() {
		return client.Result{}, fmt.Errorf("%q is not a valid pool name: names are DNS labels of a-z, 0-9 and -", name)
	}
	var text []byte
	if cidrs != nil {
		err := checkCIDRs(cidrs)
		if err == nil {
			text, err = schema.Encode(map[string]any{"cidrs": cidrs})
		}
		if err == nil && len(text) > schema.MaxEntryText {
			err = fmt.Errorf("%d networks are too many: the text has %d bytes, and at most %d are allowed", len(cidrs), len(text), schema.MaxEntryText)
		}
		if err != nil {
			return client.Result{}, fmt.Errorf("setting pool %s: %w", name, err)
		}
	}
	for range maxTries {
		result, ok, err := w.setPool(ctx, name, cidrs, text)
		if err != nil || ok {
			return result, err
		}
	}
	return client.Result{}, fmt.Errorf("other clients keep changing the addresses of pool %s: nothing was written. Try again", name)
}

// setPool writes a pool. It writes nothing if the pool was changed or an address was allocated
// since the pool was read.
func (w *Writer) setPool(ctx context.Context, name string, cidrs []netip.Prefix, text []byte) (client.Result, bool, error) {
	b, err := readHeld(ctx, w.client)
	if err == nil {
		err = b.readRest(ctx, w.client)
	}
	if err != nil {
		return client.Result{}, false, err
	}
	old := cmp.Or(b.pools[name], &pool{})
	if old.wrong == "" && slices.Equal(old.cidrs, cidrs) {
		return client.Result{Revision: old.revision}, true, nil
	}
	if err := w.orphans(ctx, b, old, &pool{cidrs: cidrs}); err != nil {
		return client.Result{}, false, fmt.Errorf("setting pool %s: %w", name, err)
	}
	key := w.keys.Pool(name)
	op := client.Remove(key)
	if text != nil {
		if text, err = old.with(cidrs); err == nil {
			err = schema.CheckEntry(key, text)
		}
		if err != nil {
			return client.Result{}, false, err
		}
		op = client.Put(key, text, 0)
	}
	ifs := []*etcdserverpb.Compare{client.Unchanged(key, old.revision), notSince(client.Folder(w.keys.Prefix+schema.VIPFolder), b.revision)}
	at, ok, err := w.client.Commit(ctx, key, ifs, []*etcdserverpb.RequestOp{op})
	return client.Result{Revision: at, Changed: ok}, ok, err
}

const maxNamed = 10

// orphans returns an error if replacing the pool old with the pool next would remove addresses that
// services hold.
func (w *Writer) orphans(ctx context.Context, b *book, old, next *pool) error {
	var lost []netip.Addr
	for a := range b.held {
		if old.holds(a) && !next.holds(a) {
			lost = append(lost, a)
		}
	}
	slices.SortFunc(lost, netip.Addr.Compare)
	asks := map[balancer.Name]bool{}
	named, n := "", 0
	for _, a := range lost {
		by := b.held[a].by
		if _, known := asks[by]; !known && by.Valid() {
			s, err := w.Service(ctx, by)
			if err != nil {
				return err
			}
			// A service whose definition can't be read may still request addresses from the pool.
			asks[by] = s == nil || s.Service == nil || slices.ContainsFunc(s.Service.Pools, func(p string) bool { return cmp.Or(p, DefaultPool) == old.name })
		}
		if !asks[by] {
			continue // the address belongs to another pool that also contains it
		}
		if n++; n <= maxNamed {
			named += fmt.Sprintf(", %s (service %s)", a, by)
		}
	}
	if n == 0 {
		return nil
	}
	if n > maxNamed {
		named += fmt.Sprintf(" and %d more", n-maxNamed)
	}
	return fmt.Errorf("the pool would lose addresses that services hold: %s. Keep their networks, or remove the services first", named[2:])
}
