package conntrack

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
)

// batch is the maximum number of flows in a deletion request. The kernel reports each missing flow,
// so the receive buffer must have space for that many reports.
const batch = 128

const (
	// aWalk is the number of flows that the kernel can list in the time that a search takes. A
	// search scans the whole table in the kernel (30 ms for 100,000 flows).
	aWalk = 15_000
	// fewSearches is the maximum number of searches for keys with the same family and protocol. For
	// more keys, listing all flows of the protocol is cheaper.
	fewSearches = 3
)

// Cut deletes the flows of all keys whose value is true, and returns the number of deleted flows.
// If stale is not nil, Cut deletes only flows for which stale returns true. It lists a small table
// once. In a large table it searches for a few keys one by one. For more keys with the same family
// and protocol, it lists all flows of that family and protocol once. Flows are deleted as they are
// found, so some may be deleted even if Cut fails. If the kernel refuses to delete flows in a
// flowtable, Cut deletes all other flows, and then returns the first refusal.
func (c *Conn) Cut(ctx context.Context, keys map[balancer.Key]bool, stale func(*Flow) bool) (int, error) {
	flows, err := c.count()
	if err != nil || flows == 0 {
		return 0, err
	}
	return c.cut(ctx, searches(keys, flows), keys, stale)
}

// cut implements Cut using the searches in by.
func (c *Conn) cut(ctx context.Context, by []selection, keys map[balancer.Key]bool, stale func(*Flow) bool) (int, error) {
	deleted, busy := 0, error(nil)
	found := make([]Flow, 0, batch)
	flush := func() error {
		if len(found) == 0 {
			return nil
		}
		n, err := c.deleteAll(found)
		deleted += n
		found = found[:0]
		if errors.Is(err, unix.EBUSY) {
			busy, err = cmp.Or(busy, err), nil
		}
		return err
	}
	ranges := map[netip.Addr][]balancer.Key{}
	for k, wanted := range keys {
		if wanted && k.Port.IsRange() {
			ranges[k.Addr] = append(ranges[k.Addr], k)
		}
	}
	visit := func(f *Flow) error {
		k := f.Frontend()
		inRange := func(r balancer.Key) bool { return r.Covers(k) }
		if !keys[k] && !slices.ContainsFunc(ranges[k.Addr], inRange) || stale != nil && !stale(f) {
			return nil
		}
		if found = append(found, *f); len(found) == batch {
			return flush()
		}
		return nil
	}
	for _, s := range by {
		if err := c.list(ctx, s, visit); err != nil {
			return deleted, err
		}
		if err := flush(); err != nil {
			return deleted, err
		}
	}
	return deleted, busy
}

// singlePort returns the port to search for. For a range, it returns 0, which matches any port.
func singlePort(p balancer.PortRange) uint16 {
	if p.IsRange() {
		return 0
	}
	return p.First()
}

// searches returns searches that find all flows of keys, and perhaps other flows. flows is the size
// of the table.
func searches(keys map[balancer.Key]bool, flows uint64) []selection {
	type kind struct {
		family inet.Family
		proto  balancer.Protocol
	}
	exact := map[kind]map[selection]bool{} // a set, because IPv6 keys with the same port share a search
	for k, wanted := range keys {
		if !wanted || k.Proto.Number() == 0 {
			continue
		}
		of := kind{inet.Of(k.Addr), k.Proto}
		if exact[of] == nil {
			exact[of] = map[selection]bool{}
		}
		exact[of][Filter{Proto: k.Proto, Dst: k.Addr, Port: singlePort(k.Port)}.selection()] = true
	}
	var all []selection
	for of, each := range exact {
		if len(each) > fewSearches {
			all = append(all, Filter{Family: of.family, Proto: of.proto}.selection())
			continue
		}
		for s := range each {
			all = append(all, s)
		}
	}
	if len(all) > 1 && flows < aWalk*uint64(len(all)-1) {
		return []selection{{}}
	}
	return all
}
