package guard

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

// openRanges holds the open ports of frontends with a range of ports. While a transaction takes
// effect, packets may miss the elements that it replaces. So a change keeps all equal elements.
type openRanges struct {
	// frontends counts the frontends with a range, including those without an open part.
	frontends int
	// desired and applied count the frontends that have each part.
	desired, applied map[openPart]int
	// changed reports whether the counts have changed since the last write.
	changed bool
	// have holds the elements in the kernel.
	have rangeElements
}

// rangeElements holds elements of the map from open ports to ranges, by their content.
type rangeElements map[string]nft.Elem

func (all rangeElements) add(e nft.Elem) {
	all[string(slices.Concat(e.Key, e.KeyEnd, e.Data))] = e
}

// without returns the elements that others lack, in order.
func (all rangeElements) without(others rangeElements) (left []nft.Elem) {
	for _, content := range slices.Sorted(maps.Keys(all)) {
		if _, found := others[content]; !found {
			left = append(left, all[content])
		}
	}
	return left
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
	r.frontends += by
	r.changed = true
	for _, ports := range f.Open {
		p := openPart{f.Addr, f.Proto.Number(), ports, f.Key.Port}
		if to[p] += by; to[p] <= 0 {
			delete(to, p)
		}
	}
}

// parts returns the parts without overlaps. The parts of desired frontends precede the parts of
// frontends that are only applied.
func (r *openRanges) parts() []openPart {
	all := slices.SortedFunc(maps.Keys(r.desired), openPart.compare)
	for _, p := range slices.SortedFunc(maps.Keys(r.applied), openPart.compare) {
		if r.desired[p] > 0 {
			continue
		}
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

// write queues the difference between the kernel's elements and the wanted elements. The kernel
// refuses intervals that overlap, so elements are deleted first.
func (r *openRanges) write(tx *nft.Tx, y *layout) {
	wanted := rangeElements{}
	for _, e := range r.elements() {
		wanted.add(e)
	}
	tx.Delete(y.table, y.ranges, r.have.without(wanted)...)
	tx.Add(y.table, y.ranges, wanted.without(r.have)...)
	r.have, r.changed = wanted, false
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
