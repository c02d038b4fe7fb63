package guard

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

// openRanges holds the open ports of frontends with a range of ports. The kernel refuses intervals
// that overlap, so each change replaces all of them.
type openRanges struct {
	// desired and applied count the frontends that have each part.
	desired, applied map[openPart]int
	// changed reports whether the kernel may have other parts.
	changed bool
}

// openPart is an open part of a range.
type openPart struct {
	addr  netip.Addr
	proto byte
	// ports is the part, and of the whole range.
	ports, of balancer.PortRange
}

func (p openPart) compare(q openPart) int {
	return cmp.Or(p.addr.Compare(q.addr), cmp.Compare(p.proto, q.proto), cmp.Compare(p.ports.First(), q.ports.First()), cmp.Compare(p.of, q.of))
}

// want adds by to the reference count of f.
func (r *openRanges) want(f *balancer.Frontend, by int, applied bool) {
	if !f.Key.Port.IsRange() || f.Withdrawn {
		return
	}
	if r.desired == nil {
		r.desired, r.applied = map[openPart]int{}, map[openPart]int{}
	}
	to := r.desired
	if applied {
		to = r.applied
	}
	for _, ports := range f.Open {
		p := openPart{f.Addr, f.Proto.Number(), ports, f.Key.Port}
		if to[p] += by; to[p] <= 0 {
			delete(to, p)
		}
		r.changed = true
	}
}

func (r *openRanges) nonEmpty() bool { return len(r.desired)+len(r.applied) > 0 }

// parts returns the parts without overlaps. The parts of desired frontends precede the parts of
// frontends that are only applied.
func (r *openRanges) parts() []openPart {
	all := slices.SortedFunc(maps.Keys(r.desired), openPart.compare)
	for _, p := range slices.SortedFunc(maps.Keys(r.applied), openPart.compare) {
		left := []balancer.PortRange{p.ports}
		for _, q := range all {
			if q.addr == p.addr && q.proto == p.proto {
				left = balancer.Without(left, q.ports)
			}
		}
		for _, ports := range left {
			all = append(all, openPart{p.addr, p.proto, ports, p.of})
		}
	}
	slices.SortFunc(all, openPart.compare)
	return all
}

// elements returns the elements of the map from open ports to ranges.
func (r *openRanges) elements() (all []nft.Elem) {
	for _, p := range r.parts() {
		place := func(port uint16) nft.Bytes { return nft.Bytes{}.Addr(p.addr).Proto(p.proto).Port(port) }
		all = append(all, nft.Elem{Key: place(p.ports.First()), KeyEnd: place(p.ports.Last()), Data: nft.Bytes{}.Number(uint32(p.of))})
	}
	return all
}

// byRange separates the entries of frontends with a range of ports.
func byRange(entries []setEntry) (single, ranged []setEntry) {
	for _, e := range entries {
		if e.Port.IsRange() {
			ranged = append(ranged, e)
		} else {
			single = append(single, e)
		}
	}
	return single, ranged
}
