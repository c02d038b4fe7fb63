package definitions

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/test/wait"
)

// TestUsable checks the addresses that pools of several sizes give. They must not include addresses
// that no host can have, such as an IPv4 network's first and last address.
func TestUsable(t *testing.T) {
	for text, want := range map[string]struct {
		n           uint64
		first, last string
	}{
		"10.96.0.0/24":     {254, "10.96.0.1", "10.96.0.254"},
		"10.96.0.0/30":     {2, "10.96.0.1", "10.96.0.2"},
		"10.96.0.0/31":     {2, "10.96.0.0", "10.96.0.1"},
		"10.96.0.7/32":     {1, "10.96.0.7", "10.96.0.7"},
		"0.0.0.0/1":        {1<<31 - 2, "0.0.0.1", "127.255.255.254"},
		"fd00::/127":       {2, "fd00::", "fd00::1"},
		"fd00::/126":       {3, "fd00::1", "fd00::3"},
		"fd00::/64":        {1<<48 - 1, "fd00::1", "fd00::ffff:ffff:ffff"},
		"fd00:0:0:1::/80":  {1<<48 - 1, "fd00:0:0:1::1", "fd00::1:0:ffff:ffff:ffff"},
		"fd00::5:0:0/96":   {1<<32 - 1, "fd00::5:0:1", "fd00::5:ffff:ffff"},
		"fd00::ff:0:0/112": {1<<16 - 1, "fd00::ff:0:1", "fd00::ff:0:ffff"},
		"2000::/3":         {1<<48 - 1, "2000::1", "2000::ffff:ffff:ffff"},
	} {
		p := &pool{cidrs: []netip.Prefix{netip.MustParsePrefix(text)}}
		n := p.size()
		if first, last := p.at(0), p.at(n-1); n != want.n || first.String() != want.first || last.String() != want.last {
			t.Errorf("pool %s gives %d addresses from %s to %s, want %d from %s to %s", text, n, first, last, want.n, want.first, want.last)
		}
		for _, i := range []uint64{0, n / 3, n - 1} {
			if a := p.at(i); !p.gives(a) || !p.holds(a) {
				t.Errorf("address %s is number %d of pool %s, but does not count as in the pool", a, i, text)
			}
		}
		for _, a := range []netip.Addr{p.at(0).Prev(), p.at(n - 1).Next()} {
			if a.IsValid() && p.gives(a) {
				t.Errorf("pool %s gives %s", text, a)
			}
		}
	}
}

// TestChoose chooses addresses for a service from random pools. It must not choose other services'
// addresses. Addresses that the service holds must remain while they are requested. The choice may
// fail only if a pool is exhausted, or if the pools that the service requests overlap.
func TestChoose(t *testing.T) {
	for seed := range uint64(wait.Soak(500, 3000)) {
		r := rand.New(rand.NewPCG(seed, 5))
		b, s := randomBook(r), &balancer.Service{Name: "web"}
		for range r.IntN(4) {
			s.Pools = append(s.Pools, []string{"", "blue", "green", "wide"}[r.IntN(4)])
		}
		for range r.IntN(2) {
			s.VIPs = append(s.VIPs, address(r))
		}
		b.claim("web", s.VIPs)
		got, err := b.choose(s, r.IntN(3))
		if problem := judge(b, s, got, err); problem != "" {
			t.Fatalf("seed %d: service %s holds %v and requests pools %q: choice = %+v, %v: %s", seed, s.Name, b.byService["web"], s.Pools, got, err, problem)
		}
		if err != nil {
			continue
		}
		// Choosing again must not change anything.
		b.note("web", s, got, 1000)
		if again, err := b.choose(s, r.IntN(3)); err != nil || again.changes() {
			t.Fatalf("seed %d: second choice = %+v after %+v, %v, want no change", seed, again, got, err)
		}
	}
}

// address returns a random address. There are only a few different addresses, so they often
// collide.
func address(r *rand.Rand) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(18))}) }

// randomBook returns a book with overlapping pools, and with random addresses that services hold or
// name in their definitions.
func randomBook(r *rand.Rand) *book {
	b := &book{
		held: map[netip.Addr]held{}, byService: map[balancer.Name][]netip.Addr{},
		texts: map[balancer.Name][]netip.Addr{}, claimed: map[netip.Addr]int{},
		pools: map[string]*pool{
			"default": {name: "default", cidrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/29")}},
			"blue":    {name: "blue", cidrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.4/30"), netip.MustParsePrefix("10.0.0.10/31")}},
			"green":   {name: "green", cidrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.12/30")}},
			"wide":    {name: "wide", cidrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28"), netip.MustParsePrefix("fd00::/64")}},
		},
	}
	for range r.IntN(10) {
		a := address(r)
		if _, there := b.held[a]; !there {
			b.hold(a, held{by: []balancer.Name{"web", "dns", "?"}[r.IntN(3)], created: int64(r.IntN(5)), modified: 7})
		}
	}
	for name := range b.byService {
		b.sort(name)
	}
	for i := range r.IntN(3) {
		b.claim(balancer.Name(fmt.Sprint("s", i)), []netip.Addr{address(r), address(r)})
	}
	return b
}

// judge describes a mistake in choose's result. It returns "" if there is none.
func judge(b *book, s *balancer.Service, got allocation, err error) string {
	var has []netip.Addr
	for _, h := range got.keep {
		if b.held[h.addr].by != s.Name || h.modified != 7 {
			return "it keeps what it does not hold"
		}
		has = append(has, h.addr)
	}
	most := best(b, s, b.byService[s.Name])
	if overlap := overlapping(b, s); overlap || err != nil && strings.Contains(err.Error(), " overlap, ") {
		if overlap && err != nil {
			return ""
		}
		return fmt.Sprintf("its pools overlap: %t", overlap)
	}
	if err != nil {
		free := func(p *pool) bool { // reports whether the pool still has an address that is not taken
			for i := range min(p.size(), 100) {
				if a := p.at(i); !b.taken(a) {
					return true
				}
			}
			return false
		}
		for _, name := range s.Pools {
			if !free(b.pools[cmp.Or(name, DefaultPool)]) {
				return ""
			}
		}
		if strings.Contains(err.Error(), "exhausted") && len(s.Pools) > 1 {
			return "" // the service's other requests have used the remaining addresses
		}
		return "it fails though there is room"
	}
	if len(got.keep) != most || len(got.keep)+len(got.free) != len(b.byService[s.Name]) {
		return fmt.Sprintf("it could keep %d", most)
	}
	for _, a := range got.take {
		if b.taken(a) || slices.Contains(has, a) {
			return "it takes what is taken"
		}
		has = append(has, a)
	}
	if len(has) != len(s.Pools) || best(b, s, has) != len(has) {
		return "what it has is not what it asks for"
	}
	return ""
}

// overlapping reports whether two of the pools that s requests share an address.
func overlapping(b *book, s *balancer.Service) bool {
	for i := range 18 {
		in := map[string]bool{}
		for _, name := range s.Pools {
			if name = cmp.Or(name, DefaultPool); b.pools[name].holds(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})) {
				in[name] = true
			}
		}
		if len(in) > 1 {
			return true
		}
	}
	return false
}

// best returns how many of s's requests the given addresses can fulfill at most. It tries all
// combinations.
func best(b *book, s *balancer.Service, addresses []netip.Addr) int {
	if len(addresses) == 0 {
		return 0
	}
	most := best(b, s, addresses[1:])
	for i, name := range s.Pools {
		if b.pools[cmp.Or(name, DefaultPool)].holds(addresses[0]) && !slices.Contains(s.VIPs, addresses[0]) {
			rest := *s
			rest.Pools = slices.Delete(slices.Clone(s.Pools), i, i+1)
			most = max(most, 1+best(b, &rest, addresses[1:]))
		}
	}
	return most
}
