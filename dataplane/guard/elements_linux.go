package guard

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// Add implements [setStore].
func (y *familyGuard) Add(set string, entries []setEntry) {
	single, ranged := byRange(entries)
	y.tx.Add(y.layout.table, y.layout.sets[set], elements(single)...)
	y.tx.Add(y.layout.table, y.layout.inRange.sets[set], elements(ranged)...)
}

// Delete implements [setStore].
func (y *familyGuard) Delete(set string, entries []setEntry) {
	single, ranged := byRange(entries)
	y.tx.Delete(y.layout.table, y.layout.sets[set], elements(single)...)
	y.tx.Delete(y.layout.table, y.layout.inRange.sets[set], elements(ranged)...)
}

// List implements [setStore].
func (y *familyGuard) List(set string) ([]setEntry, error) {
	decode, decodeRanged := entryOf, entryOf
	if set == deadSet || set == quietSet {
		decode, decodeRanged = endpointOf, rangeEndpointOf
	}
	found, err := y.table.Elements(y.layout.table, y.layout.sets[set].Name)
	var ranged []nft.FoundElem
	if r := y.layout.inRange.sets[set]; err == nil && r != y.layout.sets[set] {
		ranged, err = y.table.Elements(y.layout.table, r.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading set %s of table %s: %w", set, y.layout.table, err)
	}
	entries := make([]setEntry, 0, len(found)+len(ranged))
	for _, e := range found {
		entries = append(entries, decode(&e.Elem, y.family))
	}
	for _, e := range ranged {
		entries = append(entries, decodeRanged(&e.Elem, y.family))
	}
	return entries, nil
}

// portOf decodes the four bytes of an element that hold a port or the number of a port range. The
// last two bytes are zero only for a port.
func portOf(b []byte) balancer.PortRange {
	if b[2] == 0 && b[3] == 0 {
		return balancer.PortRange(binary.BigEndian.Uint16(b))
	}
	return balancer.PortRange(binary.NativeEndian.Uint32(b))
}

// entryOf decodes an element. A foreign element becomes an entry that no frontend wants.
func entryOf(e *nft.Elem, of inet.Family) (x setEntry) {
	size := addrSize(of)
	key := e.Key
	if len(key) < size {
		return x
	}
	x.Addr, _ = netip.AddrFromSlice(key[:size])
	if len(key) >= size+8 {
		x.Proto = key[size]
		x.Port = portOf(key[size+4:])
	}
	if len(e.Data) >= 2 {
		x.MSS = binary.BigEndian.Uint16(e.Data)
	}
	if len(key) >= 2*size+8 && len(e.KeyEnd) == len(key) {
		first, _ := netip.AddrFromSlice(key[size+8:])
		last, _ := netip.AddrFromSlice(e.KeyEnd[size+8:])
		x.Net = netip.PrefixFrom(first, inet.CommonBits(first, last))
	}
	return x
}

// rangeEndpointOf is like endpointOf for a frontend with a port range.
func rangeEndpointOf(e *nft.Elem, of inet.Family) (x setEntry) {
	size := addrSize(of)
	if len(e.Key) < 2*size+8 {
		return x
	}
	x = entryOf(&nft.Elem{Key: e.Key[:size+8]}, of)
	to, _ := netip.AddrFromSlice(e.Key[size+8 : 2*size+8])
	x.To = netip.AddrPortFrom(to, 0)
	return x
}
