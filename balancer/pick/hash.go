package pick

import "net/netip"

// Hashes have no seed: every process, on every node and architecture, makes the same choice for the same client.

// mix is the finalizer of splitmix64: each bit of x bears on every bit of the result.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// The parameters of FNV-1a of 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// hashAddr hashes the bytes of a. IPv4 addresses are the same in their IPv6 form. Zones, which are names that each node
// gives its own links, do not count.
func hashAddr(a netip.Addr) uint64 { return mix(fnvAddr(a)) }

// hashAddrPort hashes the address of a backend, with its zone: that tells backends apart.
func hashAddrPort(ap netip.AddrPort) uint64 {
	h := fnvAddr(ap.Addr())
	for _, b := range []byte(ap.Addr().Zone()) {
		h = (h ^ uint64(b)) * fnvPrime
	}
	h = (h ^ uint64(ap.Port()>>8)) * fnvPrime
	h = (h ^ uint64(ap.Port()&0xff)) * fnvPrime
	return mix(h)
}

func fnvAddr(a netip.Addr) uint64 {
	h := uint64(fnvOffset)
	for _, b := range a.As16() {
		h = (h ^ uint64(b)) * fnvPrime
	}
	return h
}
