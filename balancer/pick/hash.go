package pick

import (
	"net/netip"

	"vipd/balancer/internal/hash"
)

// hashAddr hashes the bytes of a. An IPv4 address has the same hash in its IPv6 form. Zones are
// ignored, because each node names its links itself.
func hashAddr(a netip.Addr) uint64 { return hash.Mix(fnvAddr(a)) }

// hashAddrPort hashes the address of a backend with its zone, which distinguishes backends.
func hashAddrPort(ap netip.AddrPort) uint64 {
	h := hash.Add(fnvAddr(ap.Addr()), ap.Addr().Zone())
	port := [2]byte{byte(ap.Port() >> 8), byte(ap.Port())}
	return hash.Mix(hash.Add(h, port[:]))
}

func fnvAddr(a netip.Addr) uint64 {
	bytes := a.As16()
	return hash.Add(hash.Offset, bytes[:])
}
