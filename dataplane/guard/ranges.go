package guard

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

// openRanges holds the open ports of frontends with a port range, by address. While a transaction
// takes effect, packets may miss the elements that it replaces. So a change leaves unchanged
// elements alone.
type openRanges struct {
	// frontends counts the desired and the applied frontends with a range, even if no part is open.
	frontends int
	// desired and applied count the frontends that have each open part.
	desired, applied map[netip.Addr]map[openPart]int
	// changed holds the addresses whose counts have changed since the last write.
	changed map[netip.Addr]bool
	// have holds the elements in the kernel.
	have map[netip.Addr]rangeElements
}

// rangeElements holds elements of the map from open ports to ranges. Its keys are the elements'
// contents.
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

type openPart struct {
	proto byte
	// ports is the open part. of is the whole range.
	ports, of balancer.PortRange
}

func (p openPart) compare(q openPart) int {
	return cmp.Or(cmp.Compare(p.proto, q.proto), cmp.Compare(p.ports.First(), q.ports.First()), cmp.Compare(p.of, q.of))
}

// want adds the argument by to the reference count of each open part of f. If applied is set, f
// counts as an applied frontend, otherwise as a desired frontend.
func (r *openRanges) want(f *balancer.Frontend, by int, applied bool) {
	if !f.Key.Port.IsRange() || f.Withdrawn {
		return
	}
	if r.desired == nil {
		r.desired, r.applied = map[netip.Addr]map[openPart]int{}, map[netip.Addr]map[openPart]int{}
	}
	if r.have == nil {
		r.found(map[netip.Addr]rangeElements{})
	}
	to := r.desired
	if applied {
		to = r.applied
	}
	r.frontends += by
	r.changed[f.Addr] = true
	if to[f.Addr] == nil {
		to[f.Addr] = map[openPart]int{}
	}
	for _, ports := range f.Open {
		p := openPart{f.Proto.Number(), ports, f.Key.Port}
		if to[f.Addr][p] += by; to[f.Addr][p] <= 0 {
			delete(to[f.Addr], p)
		}
	}
	if len(to[f.Addr]) == 0 {
		delete(to, f.Addr)
	}
}

// parts returns the parts on an address without overlap. The parts of desired frontends precede the
// parts of frontends that are only applied.
func (r *openRanges) parts(a netip.Addr) []openPart {
	all := slices.SortedFunc(maps.Keys(r.desired[a]), openPart.compare)
	for _, p := range slices.SortedFunc(maps.Keys(r.applied[a]), openPart.compare) {
		if r.desired[a][p] > 0 {
			continue
		}
		left := []balancer.PortRange{p.ports}
		for _, q := range all {
			if q.proto == p.proto {
				left = balancer.Without(left, q.ports)
			}
		}
		for _, ports := range left {
			all = append(all, openPart{p.proto, ports, p.of})
		}
	}
	slices.SortFunc(all, openPart.compare)
	return all
}

// elements returns the elements of an address in the map from open ports to ranges.
func (r *openRanges) elements(a netip.Addr) rangeElements {
	all := rangeElements{}
	for _, p := range r.parts(a) {
		place := func(port uint16) nft.Bytes { return nft.Bytes{}.Addr(a).Proto(p.proto).Port(port) }
		all.add(nft.Elem{Key: place(p.ports.First()), KeyEnd: place(p.ports.Last()), Data: nft.Bytes{}.Number(uint32(p.of))})
	}
	return all
}

// found records the elements found in the kernel, so the next write compares all addresses.
func (r *openRanges) found(have map[netip.Addr]rangeElements) {
	r.have, r.changed = have, map[netip.Addr]bool{}
	for a := range have {
		r.changed[a] = true
	}
	for _, counts := range []map[netip.Addr]map[openPart]int{r.desired, r.applied} {
		for a := range counts {
			r.changed[a] = true
		}
	}
}

// write queues the difference between the kernel's elements and the wanted elements of the changed
// addresses. The kernel refuses intervals that overlap, so elements are deleted first.
func (r *openRanges) write(tx *nft.Tx, y *layout) {
	for _, a := range slices.SortedFunc(maps.Keys(r.changed), netip.Addr.Compare) {
		have, wanted := r.have[a], r.elements(a)
		tx.Delete(y.table, y.ranges, have.without(wanted)...)
		tx.Add(y.table, y.ranges, wanted.without(have)...)
		if r.have[a] = wanted; len(wanted) == 0 {
			delete(r.have, a)
		}
	}
	clear(r.changed)
}

// byRange separates entries with a single port, or none, from entries with a port range.
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
