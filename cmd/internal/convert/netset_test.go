package convert

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestNetsetOperations computes unions, differences and complements of random networks. The test
// checks the first and last address of each network, and the addresses next to them. A result must
// contain an address if, and only if, the set operation requires it.
func TestNetsetOperations(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		random := func() []netip.Prefix {
			var out []netip.Prefix
			for range r.IntN(5) {
				v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(3)), byte(r.IntN(256))}), 20+r.IntN(13))
				v6 := netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", r.IntN(600))), 110+r.IntN(19))
				out = append(out, []netip.Prefix{v4, v6, netip.PrefixFrom(v4.Addr(), 0), netip.PrefixFrom(v6.Addr(), 0)}[r.IntN(10)%4])
			}
			return out
		}
		a, b := random(), random()
		in := func(networks []netip.Prefix, addr netip.Addr) bool {
			return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
		}
		setA, setB := newNetset(a...), newNetset(b...)
		union, minus, not := setA.union(setB).networks(), setA.minus(setB).networks(), setA.complement().networks()
		for _, p := range slices.Concat(a, b, union, minus, not) {
			for _, addr := range []netip.Addr{p.Masked().Addr(), p.Masked().Addr().Prev(), lastOf(p), lastOf(p).Next()} {
				if !addr.IsValid() {
					continue
				}
				if in(union, addr) != (in(a, addr) || in(b, addr)) || in(minus, addr) != (in(a, addr) && !in(b, addr)) || in(not, addr) == in(a, addr) {
					t.Fatalf("seed %d, %s: a = %v, b = %v: union = %v, minus = %v, complement = %v; want the correct set operations on a and b", seed, addr, a, b, union, minus, not)
				}
			}
		}
	}
}

// TestNetsetNetworks converts sets to lists of networks. Each list must be as short as possible.
func TestNetsetNetworks(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"10.0.0.0/9 10.128.0.0/9", "[10.0.0.0/8]"},
		{"10.0.0.1/32 10.0.0.2/31", "[10.0.0.1/32 10.0.0.2/31]"},
		{"0.0.0.0/0 ::/0", "[0.0.0.0/0 ::/0]"},
		{"255.255.255.255/32 ::/128", "[255.255.255.255/32 ::/128]"},
		{"", "[]"},
	} {
		var networks []netip.Prefix
		for _, word := range strings.Fields(c.set) {
			networks = append(networks, netip.MustParsePrefix(word))
		}
		if got := fmt.Sprint(newNetset(networks...).networks()); got != c.want {
			t.Errorf("%q: networks = %s, want %s", c.set, got, c.want)
		}
	}
}
