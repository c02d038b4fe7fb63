package portmap

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"vipd/balancer"
)

// TestNarrowest divides random ranges. Each port must have the number of the narrowest range that
// contains it.
func TestNarrowest(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	addrs := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1")}
	for range 200 {
		ranges := map[balancer.Key]uint32{}
		for i := range 1 + r.IntN(6) {
			first := uint16(1 + 10*r.IntN(6)) // a service's ranges don't overlap, except "all"
			k := balancer.Key{Addr: addrs[r.IntN(2)], Port: balancer.NewPortRange(first, first+1+uint16(r.IntN(9))), Proto: balancer.TCP}
			if r.IntN(4) == 0 {
				k.Port = balancer.AllPorts
			}
			ranges[k] = uint32(i + 1)
		}
		parts := Narrowest(ranges)
		for port := uint16(1); port < 80; port++ {
			for _, addr := range addrs {
				want := numberAt(ranges, addr, port)
				if got := numberAt(parts, addr, port); got != want {
					t.Fatalf("seed %d: number for %s port %d in %v = %d, want %d from %v", seed, addr, port, parts, got, want, ranges)
				}
			}
		}
		for k := range parts {
			for other := range maps.Keys(parts) {
				if k != other && k.Addr == other.Addr && k.Port.Overlaps(other.Port) {
					t.Fatalf("seed %d: parts %s and %s overlap", seed, k, other)
				}
			}
		}
	}
}

// numberAt returns the number of the narrowest range that contains a port, or 0.
func numberAt(ranges map[balancer.Key]uint32, addr netip.Addr, port uint16) (number uint32) {
	narrowest := 1 << 16
	for k, n := range ranges {
		if k.Addr == addr && k.Port.Contains(port) && k.Port.Len() < narrowest {
			number, narrowest = n, k.Port.Len()
		}
	}
	return number
}
