package guard

import (
	"cmp"
	"net/netip"

	"vipd/balancer"
)

// entry is an element of a set. Fields that the set's key does not have are zero.
type entry struct {
	Addr  netip.Addr
	Proto byte
	Port  uint16
	// Net is a network of clients. Its length is at least 1.
	Net netip.Prefix
	// MSS is the value that a map has for the place.
	MSS uint16
	// To is an endpoint behind the place.
	To netip.AddrPort
}

// compare orders entries by address, protocol, port, network, MSS and endpoint.
func (e entry) compare(o entry) int {
	return cmp.Or(
		e.Addr.Compare(o.Addr), cmp.Compare(e.Proto, o.Proto), cmp.Compare(e.Port, o.Port),
		e.Net.Addr().Compare(o.Net.Addr()), cmp.Compare(e.Net.Bits(), o.Net.Bits()), cmp.Compare(e.MSS, o.MSS), e.To.Compare(o.To),
	)
}

// placeOf is where a frontend is.
func placeOf(k balancer.Key) entry { return entry{Addr: k.Addr, Port: k.Port, Proto: k.Proto.Number()} }

// at is the place of an entry, without the network or MSS that some sets have besides.
func at(e entry) entry { return entry{Addr: e.Addr, Proto: e.Proto, Port: e.Port} }
