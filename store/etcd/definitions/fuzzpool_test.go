package definitions

import "testing"

// FuzzPool parses an arbitrary text as a pool. If the pool can be used, its networks must be valid,
// and the addresses that it gives must be in its networks.
func FuzzPool(f *testing.F) {
	for _, text := range []string{`{"cidrs":["10.96.0.0/24","fd00::/64"]}`, `{"cidrs":["0.0.0.0/1","255.255.255.255/32"],"x":[]}`, `{"cidrs":"::/1"}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p := decodePool("p", text, 1)
		if p.wrong != "" {
			return
		}
		if err := checkCIDRs(p.cidrs); err != nil {
			t.Fatalf("pool %s: networks = %v: %v, want valid networks", text, p.cidrs, err)
		}
		n := p.size()
		for _, i := range []uint64{0, n / 2, n - 1} {
			if a := p.at(i); n == 0 || !p.holds(a) || !p.gives(a) {
				t.Fatalf("pool %v with %d addresses: address %s, which is number %d, does not count as in the pool", p.cidrs, n, a, i)
			}
		}
	})
}
