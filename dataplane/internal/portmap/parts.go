package portmap

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
)

// Narrowest divides port ranges into parts that don't overlap. Each part has the number of the
// narrowest range that contains it. It omits single ports.
func Narrowest(ranges map[balancer.Key]uint32) map[balancer.Key]uint32 {
	type place struct {
		addr  netip.Addr
		proto balancer.Protocol
	}
	parts, used := map[balancer.Key]uint32{}, map[place][]balancer.PortRange{}
	byWidth := func(a, b balancer.Key) int { return cmp.Or(cmp.Compare(a.Port.Len(), b.Port.Len()), a.Compare(b)) }
	for _, k := range slices.SortedFunc(maps.Keys(ranges), byWidth) {
		if !k.Port.IsRange() {
			continue
		}
		at, open := place{k.Addr, k.Proto}, []balancer.PortRange{k.Port}
		for _, narrower := range used[at] {
			open = balancer.Without(open, narrower)
		}
		for _, ports := range open {
			parts[balancer.Key{Addr: k.Addr, Port: ports, Proto: k.Proto}] = ranges[k]
		}
		used[at] = append(used[at], k.Port)
	}
	return parts
}
