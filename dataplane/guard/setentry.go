package guard

import (
	"cmp"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
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

func element(e setEntry) nft.Elem {
	key := nft.Bytes{}.Addr(e.Addr)
	switch {
	case e.To.IsValid() && e.Port.IsRange():
		return nft.Elem{Key: key.Proto(e.Proto).Number(uint32(e.Port)).Addr(e.To.Addr())}
	case e.To.IsValid():
		return nft.Elem{Key: key.Port(e.Port.First()).Addr(e.To.Addr()).Port(e.To.Port())}
	}
	if e.Port != 0 {
		key = key.Proto(e.Proto)
		if e.Port.IsRange() {
			key = key.Number(uint32(e.Port))
		} else {
			key = key.Port(e.Port.First())
		}
	}
	if e.MSS != 0 {
		return nft.Elem{Key: key, Data: nft.Bytes{}.Port(e.MSS)}
	}
	if !e.Net.IsValid() {
		return nft.Elem{Key: key}
	}
	first := append(key[:len(key):len(key)], nft.Bytes{}.Addr(e.Net.Masked().Addr())...)
	last := append(key[:len(key):len(key)], nft.Bytes{}.Addr(nft.Last(e.Net))...)
	return nft.Elem{Key: first, KeyEnd: last}
}

func elements(entries []setEntry) []nft.Elem {
	all := make([]nft.Elem, len(entries))
	for i, e := range entries {
		all[i] = element(e)
	}
	return all
}
