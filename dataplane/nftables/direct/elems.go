package direct

import (
	"encoding/binary"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

// elemKey identifies an element by its set and its key.
type elemKey struct {
	set *nft.Set
	key string
}

// value holds the parts of an element other than its key. It is comparable.
type value struct{ end, data, to, comment string }

// group holds a frontend's elements in all sets.
type group map[elemKey]value

func (g group) add(s *nft.Set, e nft.Elem) {
	g[elemKey{s, string(e.Key)}] = value{string(e.KeyEnd), string(e.Data), e.Goto, e.Comment}
}

func (k elemKey) elem(v value) nft.Elem {
	e := nft.Elem{Key: []byte(k.key), Goto: v.to, Comment: v.comment}
	if v.end != "" {
		e.KeyEnd = []byte(v.end)
	}
	if v.data != "" {
		e.Data = []byte(v.data)
	}
	return e
}

// changes holds the elements to delete and the elements to create in each set.
type changes struct{ remove, add map[*nft.Set][]nft.Elem }

// diff adds the deletions and creations that replace the group was with next, and returns their
// number.
func (c *changes) diff(was, next group) (n int) {
	for k, v := range was {
		if next[k] != v {
			c.remove[k.set] = append(c.remove[k.set], k.elem(v))
			n++
		}
	}
	for k, v := range next {
		if old, there := was[k]; !there || old != v {
			c.add[k.set] = append(c.add[k.set], k.elem(v))
			n++
		}
	}
	return n
}

// place returns a frontend's key in maps: address, protocol and port.
func place(k balancer.Key) nft.Bytes {
	return nft.Bytes{}.Addr(k.Addr).Proto(k.Proto.Number()).Port(k.Port.First())
}

// elems returns the elements of a frontend. via is [layout.via].
func (y *family) elems(k balancer.Key, f *front, via map[netip.Addr]uint32) group {
	g := group{}
	if f == nil {
		return g
	}
	at, sets := place(k), []*nft.Set{y.slots, y.counted}
	if f.frontend == nil {
		at, sets = nft.Bytes{}.Addr(k.Addr).Proto(k.Proto.Number()), []*nft.Set{y.fragments}
	}
	for i, a := range f.slots {
		if device := via[a]; device != 0 {
			for _, s := range sets {
				g.add(s, nft.Elem{Key: at[:len(at):len(at)].Number(device*slotCount + uint32(i)), Data: nft.Bytes{}.Addr(a)})
			}
		}
	}
	if f.frontend == nil || len(g) == 0 {
		return g
	}
	g.add(y.services, nft.Elem{Key: at, Goto: f.chain.String(), Comment: f.label})
	g.add(y.errors, nft.Elem{Key: at, Goto: f.chain.errors().String()})
	for _, n := range f.sources {
		start := at[:len(at):len(at)]
		g.add(y.allowed, nft.Elem{Key: start.Addr(n.Addr()), KeyEnd: start.Addr(lastOf(n))})
	}
	return g
}

// lastOf returns a network's last address.
func lastOf(n netip.Prefix) netip.Addr {
	b := n.Addr().AsSlice()
	for i := n.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b) // the length is valid
	return a
}

// keyOf decodes an element's key: its frontend's key, and the slot if the set has slots. Fragments
// have port 0.
func (y *family) keyOf(s *nft.Set, b []byte) (k balancer.Key, slot int, ok bool) {
	size := 4
	if y.TableFamily == nft.IPv6 {
		size = 16
	}
	ports := 4
	if s == y.fragments {
		ports = 0
	}
	if len(b) < size+4+ports {
		return k, 0, false
	}
	a, _ := netip.AddrFromSlice(b[:size]) // the length is valid
	k = balancer.Key{Addr: a, Proto: balancer.ProtocolOf(b[size])}
	if ports > 0 {
		k.Port = balancer.PortRange(binary.BigEndian.Uint16(b[size+4:]))
	}
	if b = b[size+4+ports:]; len(b) >= 4 {
		slot = int(binary.NativeEndian.Uint32(b) % slotCount)
	}
	return k, slot, k.Proto != ""
}

// slotsIn returns each slot's endpoint in a group of elements that was read from the kernel.
func (y *family) slotsIn(g group) []netip.Addr {
	slots := make([]netip.Addr, slotCount)
	for k, v := range g {
		if k.set == y.slots {
			if _, i, ok := y.keyOf(k.set, []byte(k.key)); ok {
				slots[i], _ = netip.AddrFromSlice([]byte(v.data))
			}
		}
	}
	return slots
}
