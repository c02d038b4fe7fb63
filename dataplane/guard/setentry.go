package guard

import (
	"cmp"
	"net/netip"

	"vipd/balancer"
)

// setEntry is an element of a set. Fields that are not part of the set's key are zero.
type setEntry struct {
	Addr  netip.Addr
	Proto byte
	Port  balancer.PortRange
	// Net is a network of clients. Its prefix length is at least 1.
	Net netip.Prefix
	// MSS is the maximum segment size that a map assigns to the entry.
	MSS uint16
	// To is the address of one of the frontend's endpoints.
	To netip.AddrPort
}

// compare orders entries by address, protocol, port, network, MSS and endpoint.
func (e setEntry) compare(o setEntry) int {
	return cmp.Or(
		e.Addr.Compare(o.Addr), cmp.Compare(e.Proto, o.Proto), cmp.Compare(e.Port, o.Port),
		e.Net.Addr().Compare(o.Net.Addr()), cmp.Compare(e.Net.Bits(), o.Net.Bits()), cmp.Compare(e.MSS, o.MSS), e.To.Compare(o.To),
	)
}

// placeOf returns the place of a frontend: its address, protocol and port.
func placeOf(k balancer.Key) setEntry {
	return setEntry{Addr: k.Addr, Port: k.Port, Proto: k.Proto.Number()}
}

func placeOnly(e setEntry) setEntry { return setEntry{Addr: e.Addr, Proto: e.Proto, Port: e.Port} }
