package definitions

import "testing"

// FuzzPool parses any text of a pool. A usable pool must only contain addresses of its networks,
// and its networks must be valid.
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
			t.Fatalf("%s is read as %v: %v", text, p.cidrs, err)
		}
		n := p.size()
		for _, i := range []uint64{0, n / 2, n - 1} {
			if a := p.at(i); n == 0 || !p.holds(a) || !p.gives(a) {
				t.Fatalf("%v has %d addresses, but not %s at %d", p.cidrs, n, a, i)
			}
		}
	})
}
