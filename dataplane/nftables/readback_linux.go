package nftables

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// frontsOf builds the frontends from the elements in k.
func (y *familyTable) frontsOf(k *tableDump) map[balancer.Key]*front {
	r := frontReader{y: y, k: k, all: map[balancer.Key]*front{}}
	r.readFrontends()
	r.readBackends()
	for key, x := range r.all {
		x.firstTarget = y.firstTarget(key, x.targets)
		slices.SortFunc(x.open, func(a, b balancer.PortRange) int { return cmp.Compare(a.First(), b.First()) })
	}
	return r.all
}

// frontReader builds frontends from the elements in k. all contains the frontends found so far.
type frontReader struct {
	y   *familyTable
	k   *tableDump
	all map[balancer.Key]*front
}

func (r *frontReader) at(key balancer.Key) *front {
	if r.all[key] == nil {
		r.all[key] = &front{}
	}
	return r.all[key]
}

// of returns the frontend of an element, its key, and the number in the element's key.
func (r *frontReader) of(e *nft.FoundElem) (*front, balancer.Key, uint32) {
	key, n, ok := keyOf(e.Key, r.y.schema.table.Family)
	if !ok {
		return &front{}, key, 0
	}
	return r.at(key), key, n
}

// readFrontends reads the ports, chains and digests of frontends.
func (r *frontReader) readFrontends() {
	s := r.y.schema
	chains := map[uint32]string{unservedNumber: unserved}
	for name, c := range r.y.chains {
		if c.number != 0 {
			chains[c.number] = name
		}
	}
	for _, e := range r.k.elems[s.frontends] {
		x, _, _ := r.of(&e)
		x.number, x.label = numberIn(e.Data), e.Comment
		x.chain = chains[x.number]
		r.y.reserveNumbers(x.number)
	}
	for _, e := range r.k.elems[s.ranges] {
		if key, ports, ok := openPartOf(&e, s.table.Family); ok {
			x := r.at(key)
			x.open, x.label = append(x.open, ports), e.Comment
		}
	}
	for _, e := range r.k.elems[s.rangeChoices] {
		x, _, _ := r.of(&e)
		x.chain = e.Goto
	}
	for _, e := range r.k.of(s.single.digests, s.ranged.digests) {
		if x, _, _ := r.of(&e); len(e.Data) >= 8 {
			x.stored = max(1, dataplane.Digest(binary.NativeEndian.Uint32(e.Data))<<32|dataplane.Digest(binary.NativeEndian.Uint32(e.Data[4:]))) // 0 would mean that there is no digest
		}
	}
}

// readBackends reads the backends, their slots, and the target ports of ranges.
func (r *frontReader) readBackends() {
	s := r.y.schema
	for _, e := range r.k.elems[s.ranged.targets] {
		port, target, ok := targetOf(&e)
		if x, _, _ := r.of(&e); ok {
			if x.targets == nil {
				x.targets = map[uint16]uint16{}
			}
			x.targets[port] = target
		}
	}
	for _, e := range r.k.of(s.single.eps, s.ranged.eps) {
		x, key, n := r.of(&e)
		x.eps = put(x.eps, n, backendOf(key, e.Data, r.y.firstTarget(key, x.targets)))
	}
	for _, e := range r.k.of(s.single.slots, s.ranged.slots) {
		x, _, n := r.of(&e)
		x.slots = put(x.slots, n, numberIn(e.Data))
	}
	for _, e := range r.k.of(s.single.backends, s.ranged.backends) {
		x, key, n := r.of(&e)
		if x.ids == nil {
			x.ids = map[uint32]netip.AddrPort{}
		}
		x.ids[n] = backendOf(key, e.Data, r.y.firstTarget(key, x.targets))
	}
}

// firstTarget returns the first port of a known frontend's backends, if k has a range of ports. For
// an unknown frontend, it uses these elements of range-targets.
func (y *familyTable) firstTarget(k balancer.Key, targets map[uint16]uint16) uint16 {
	if last := y.fronts[k]; last != nil {
		return last.firstTarget
	}
	return firstTargetOf(k, targets)
}

// openPartOf decodes an element of the map ranges. It returns the key of the frontend, and the part
// of its range that the element opens.
func openPartOf(e *nft.FoundElem, f nft.TableFamily) (k balancer.Key, ports balancer.PortRange, ok bool) {
	k, _, ok = keyOf(e.Key, f)
	end, _, okEnd := keyOf(e.KeyEnd, f)
	if !ok || !okEnd || len(e.Data) < 4 {
		return k, 0, false
	}
	ports = balancer.NewPortRange(k.Port.First(), end.Port.First())
	k.Port = balancer.PortRange(binary.NativeEndian.Uint32(e.Data))
	return k, ports, k.Port.IsRange()
}

// targetOf decodes an element of the map range-targets. It returns a port of the range, and the
// endpoints' port. The port is never 0, which means a missing element: another program that writes
// 0 has damaged the element, and any wrong port makes the dataplane repair it.
func targetOf(e *nft.FoundElem) (port, target uint16, ok bool) {
	if len(e.Key) < 4 || len(e.Data) < 2 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(e.Key[len(e.Key)-4:]), max(1, binary.BigEndian.Uint16(e.Data)), true
}

// put sets element n of a list to v, and extends the list if necessary. It ignores an n that is too
// high for any frontend, because another program must have written it.
func put[V any](list []V, n uint32, v V) []V {
	if n >= 1<<20 {
		return list
	}
	for uint32(len(list)) <= n {
		var none V
		list = append(list, none)
	}
	list[n] = v
	return list
}

// keyOf decodes an element's key: its frontend's key, and the number that follows.
func keyOf(b []byte, f nft.TableFamily) (k balancer.Key, n uint32, ok bool) {
	size := 4
	if f == nft.IPv6 {
		size = 16
	}
	if len(b) < size+8 {
		return k, 0, false
	}
	a, _ := netip.AddrFromSlice(b[:size])
	k = balancer.Key{Addr: a, Port: portOf(b[size+4:]), Proto: balancer.ProtocolOf(b[size])}
	if k.Proto == "" {
		return k, 0, false
	}
	if len(b) >= size+12 {
		n = binary.NativeEndian.Uint32(b[size+8:])
	}
	return k, n, true
}

// portOf decodes the port in a key. A single port has two bytes, and the other two are zero. A
// range's number has the first port in the upper half and the last port in the lower half, so
// neither half is zero.
func portOf(b []byte) balancer.PortRange {
	if b[2] == 0 && b[3] == 0 {
		return balancer.PortRange(binary.BigEndian.Uint16(b))
	}
	return balancer.PortRange(binary.NativeEndian.Uint32(b))
}

// backendOf decodes an element's value as a backend of the frontend k. If k has a port range, the
// result has the port firstTarget.
func backendOf(k balancer.Key, b []byte, firstTarget uint16) netip.AddrPort {
	if a, ok := netip.AddrFromSlice(b); ok && k.Port.IsRange() {
		return netip.AddrPortFrom(a, firstTarget)
	}
	if len(b) < 8 {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(b[:len(b)-4])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[len(b)-4:]))
}
