package definitions

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// allocation is a change to a service's addresses: the addresses that the service keeps, releases
// and gets.
type allocation struct {
	keep, free []heldVIP
	take       []netip.Addr
	// pools lists the requested pools, without duplicates.
	pools []*pool
}

// heldVIP is an allocated address, with its record's revision.
type heldVIP struct {
	addr     netip.Addr
	modified int64
}

func (a allocation) changes() bool { return len(a.take)+len(a.free) > 0 }

func (b *book) sort(name balancer.Name) {
	slices.SortFunc(b.byService[name], func(x, y netip.Addr) int {
		return cmp.Or(cmp.Compare(b.held[x].created, b.held[y].created), x.Compare(y))
	})
}

// taken reports whether an address is unavailable for allocation.
func (b *book) taken(a netip.Addr) bool {
	_, held := b.held[a]
	return held || b.claimed[a] > 0
}

// choose allocates the addresses that a service requests from pools. It keeps addresses of these
// pools that the service already holds. It neither keeps nor allocates an address that the
// service's own text names.
func (b *book) choose(s *balancer.Service, attempt int) (allocation, error) {
	wanted, err := b.wanted(s)
	if err != nil {
		return allocation{}, err
	}
	out := allocation{pools: slices.Compact(slices.Clone(wanted))}
	missing := map[*pool]int{}
	for _, p := range wanted {
		missing[p]++
	}
	for _, a := range b.byService[s.Name] {
		h := heldVIP{a, b.held[a].modified}
		i := slices.IndexFunc(out.pools, func(p *pool) bool { return p.holds(a) })
		if i < 0 || missing[out.pools[i]] == 0 || slices.Contains(s.VIPs, a) {
			out.free = append(out.free, h)
			continue
		}
		out.keep = append(out.keep, h)
		missing[out.pools[i]]--
	}
	for _, p := range wanted {
		if missing[p]--; missing[p] < 0 {
			continue
		}
		a := p.pick(s.Name, attempt, func(a netip.Addr) bool {
			return b.taken(a) || slices.Contains(s.VIPs, a) || slices.Contains(out.take, a)
		})
		if !a.IsValid() {
			return out, fmt.Errorf("pool %s is exhausted: services hold or name all %d addresses of %s; set more networks with \"vipctl pool set %[1]s CIDR...\"",
				p.name, p.size(), joinPrefixes(p.cidrs))
		}
		out.take = append(out.take, a)
	}
	return out, nil
}

// wanted returns the pool for each address that a service requests, sorted by name. Overlapping
// pools are an error, because an address could belong to either.
func (b *book) wanted(s *balancer.Service) ([]*pool, error) {
	var wanted []*pool
	for _, name := range s.Pools {
		name = cmp.Or(name, DefaultPool)
		p := b.pools[name]
		switch {
		case p == nil:
			return nil, fmt.Errorf("there is no pool %s: create it with \"vipctl pool set %[1]s CIDR...\"", name)
		case p.wrong != "":
			return nil, fmt.Errorf("pool %s can't be used: %s; set its networks with \"vipctl pool set %[1]s CIDR...\"", name, p.wrong)
		}
		wanted = append(wanted, p)
	}
	slices.SortFunc(wanted, func(a, b *pool) int { return cmp.Compare(a.name, b.name) })
	for i, p := range wanted {
		for _, other := range wanted[:i] {
			if p != other && p.overlaps(other) {
				return nil, fmt.Errorf("service %s: pools %q and %q overlap, so the service can't use both. Name only one of them, or give each pool its own networks", s.Name, other.name, p.name)
			}
		}
	}
	return wanted, nil
}

func joinPrefixes(cidrs []netip.Prefix) string {
	var texts []string
	for _, c := range cidrs {
		texts = append(texts, c.String())
	}
	return strings.Join(texts, ", ")
}

func (b *book) allOf(name balancer.Name) (out allocation) {
	for _, a := range b.byService[name] {
		out.free = append(out.free, heldVIP{a, b.held[a].modified})
	}
	return out
}

// allocator allocates addresses from pools. Its methods are safe for concurrent use.
type allocator struct {
	mu   sync.Mutex // guards book
	book *book      // nil if it must be read
}

// plan returns the allocation for a change to a service. The change replaces the service at the
// given revision with wanted, or removes the service if wanted is nil.
func (l *allocator) plan(ctx context.Context, c *client.Client, name balancer.Name, wanted *balancer.Service, revision int64, attempt int) (allocation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for fresh := false; ; {
		if l.book == nil || l.book.revision < revision {
			b, err := readHeld(ctx, c)
			if err != nil {
				return allocation{}, err
			}
			l.book, fresh = b, true
		}
		if wanted == nil || len(wanted.Pools) == 0 {
			return l.book.allOf(name), nil
		}
		if l.book.pools == nil {
			if err := l.book.readRest(ctx, c); err != nil {
				return allocation{}, err
			}
		}
		out, err := l.book.choose(wanted, attempt)
		switch {
		case err == nil:
			return out, nil
		case fresh:
			return out, fmt.Errorf("service %s: %w", name, err)
		}
		l.book = nil // other writers may have changed the holders
	}
}

// wrote updates the book after a change was written at a revision.
func (l *allocator) wrote(name balancer.Name, wanted *balancer.Service, a allocation, revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.book != nil {
		l.book.note(name, wanted, a, revision)
	}
}

// note updates a service's addresses in the book after a change at a revision.
func (b *book) note(name balancer.Name, wanted *balancer.Service, a allocation, revision int64) {
	for _, h := range a.free {
		delete(b.held, h.addr)
	}
	b.byService[name] = nil
	for _, h := range a.keep {
		b.byService[name] = append(b.byService[name], h.addr)
	}
	for _, vip := range a.take {
		b.hold(vip, held{name, revision, revision})
	}
	var vips []netip.Addr
	if wanted != nil {
		vips = wanted.VIPs
	}
	b.claim(name, vips)
}

// refused makes the next plan read the book again, because a write that relied on the book was
// refused.
func (l *allocator) refused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.book = nil
}

// ops returns the conditions and operations for a transaction that changes a service's addresses.
func (a allocation) ops(keys schema.Keys, name balancer.Name) (ifs []*etcdserverpb.Compare, then []*etcdserverpb.RequestOp) {
	for _, p := range a.pools {
		ifs = append(ifs, client.Unchanged(keys.Pool(p.name), p.revision))
	}
	for _, h := range a.keep {
		ifs = append(ifs, client.Unchanged(keys.VIP(h.addr), h.modified))
	}
	for _, vip := range a.take {
		ifs = append(ifs, client.Unchanged(keys.VIP(vip), 0))
		then = append(then, client.Put(keys.VIP(vip), []byte(name), 0))
	}
	for _, h := range a.free {
		ifs = append(ifs, client.Unchanged(keys.VIP(h.addr), h.modified))
		then = append(then, client.Remove(keys.VIP(h.addr)))
	}
	return ifs, then
}
