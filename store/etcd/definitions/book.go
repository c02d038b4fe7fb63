package definitions

import (
	"context"
	"net/netip"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// book records the holders of addresses, and the addresses that service definitions claim. It may
// be stale, so a write that uses it must have conditions.
type book struct {
	// revision is the revision at which the book was read.
	revision int64
	// held maps each allocated address to its holder.
	held map[netip.Addr]held
	// byService lists each service's addresses, the oldest first.
	byService map[balancer.Name][]netip.Addr
	// pools and texts are nil until they are read. They are read only if an address must be
	// allocated.
	pools map[string]*pool
	texts map[balancer.Name][]netip.Addr
	// claimed counts the definitions that claim each address.
	claimed map[netip.Addr]int
}

// held is the holder of an address.
type held struct {
	by                balancer.Name
	created, modified int64
}

// readHeld reads the holders of all addresses.
func readHeld(ctx context.Context, c *client.Client) (*book, error) {
	b := &book{held: map[netip.Addr]held{}, byService: map[balancer.Name][]netip.Addr{}}
	err := c.ReadFolder(ctx, schema.VIPFolder, &b.revision, func(address string, kv *mvccpb.KeyValue) {
		s, err := schema.ParseVIP(address)
		if err != nil {
			return
		}
		// A holder with an invalid name nevertheless holds the address.
		b.hold(s.VIP, held{balancer.Name(kv.Value), kv.CreateRevision, kv.ModRevision})
	})
	for name := range b.byService {
		b.sort(name)
	}
	return b, err
}

// readRest reads the pools, and the claims in service definitions.
func (b *book) readRest(ctx context.Context, c *client.Client) error {
	pools, texts := map[string]*pool{}, map[balancer.Name][]netip.Addr{}
	var revision int64
	err := c.ReadFolder(ctx, schema.PoolFolder, &revision, func(name string, kv *mvccpb.KeyValue) {
		if balancer.Name(name).Valid() { // other pools can't be requested
			pools[name] = decodePool(name, kv.Value, kv.ModRevision)
		}
	})
	if err != nil {
		return err
	}
	err = c.ReadFolder(ctx, schema.ServiceFolder, &revision, func(name string, kv *mvccpb.KeyValue) {
		texts[balancer.Name(name)] = claims(kv.Value)
	})
	if err != nil {
		return err
	}
	b.pools = pools
	b.claimed = map[netip.Addr]int{}
	b.texts = map[balancer.Name][]netip.Addr{}
	for name, vips := range texts {
		b.claim(name, vips)
	}
	return nil
}

// claims returns the addresses that a service's definition names.
func claims(text []byte) (vips []netip.Addr) {
	fields, err := schema.ParseObject(text)
	if err != nil {
		return nil
	}
	entries, _ := fields["vips"].([]any)
	for _, e := range entries {
		if s, ok := e.(string); ok {
			if a, err := decode.ParseAddr(s); err == nil {
				vips = append(vips, a)
			}
		}
	}
	return vips
}

// claim replaces the addresses that a service's definition names.
func (b *book) claim(name balancer.Name, vips []netip.Addr) {
	if b.texts == nil {
		return
	}
	for _, a := range b.texts[name] {
		if b.claimed[a]--; b.claimed[a] == 0 {
			delete(b.claimed, a)
		}
	}
	b.texts[name] = vips
	for _, a := range vips {
		b.claimed[a]++
	}
}

func (b *book) hold(a netip.Addr, h held) {
	b.held[a] = h
	b.byService[h.by] = append(b.byService[h.by], a)
}
