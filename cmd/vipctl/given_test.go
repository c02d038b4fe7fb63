package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/test/wait"
)

// TestContestsLaw: each key that two services would have is told once, if one of them changes; as an error exactly
// where a change brings it about.
func TestContestsLaw(t *testing.T) {
	for seed := range uint64(wait.Soak(60, 300)) {
		r := rand.New(rand.NewPCG(seed, 3))
		before := map[balancer.Name]*balancer.Service{}
		for n := range r.IntN(6) {
			name := balancer.Name(fmt.Sprint("s", n))
			before[name] = crowded(r, name)
		}
		var changes []*intent
		after := map[balancer.Name]*balancer.Service{}
		changed := map[balancer.Name]bool{}
		for n := range 7 {
			name := balancer.Name(fmt.Sprint("s", n))
			after[name] = before[name]
			i := &intent{Name: name, What: []outcome{createdService, removedService, unchangedService, ""}[r.IntN(4)]}
			switch i.What {
			case "":
				continue
			case createdService:
				i.service = crowded(r, name)
				after[name], changed[name] = i.service, true
			case removedService:
				after[name] = nil
			}
			changes = append(changes, i)
		}
		r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		got := map[string]int{}
		for _, c := range contests(before, changes) {
			if p := c.problem(); p.Kind != balancer.Held {
				t.Fatalf("%v is of the kind %q", p, p.Kind)
			}
			got[contestText(c.intent.Name, c.other.Name, c.key, c.isNew)]++
		}
		want := map[string]int{}
		for a, s := range after {
			for b, o := range after {
				if a >= b || !changed[a] && !changed[b] {
					continue
				}
				for key := range s.Claims() {
					if _, both := o.Claims()[key]; both {
						_, hadA := before[a].Claims()[key]
						_, hadB := before[b].Claims()[key]
						want[contestText(a, b, key, changed[a] && !hadA || changed[b] && !hadB)]++
					}
				}
			}
		}
		for text, n := range want {
			// What was there before is told of each of the two that changes.
			if got[text] < n || got[text] > 2*n {
				t.Fatalf("seed %d: %s is told %d times", seed, text, got[text])
			}
			delete(got, text)
		}
		if len(got) > 0 {
			t.Fatalf("seed %d: told without reason: %v", seed, got)
		}
	}
}

func contestText(a, b balancer.Name, key balancer.Key, isNew bool) string {
	return fmt.Sprint(min(a, b), " and ", max(a, b), " at ", claimText(key), ", new: ", isNew)
}

// crowded is a service in a world with few addresses and ports.
func crowded(r *rand.Rand, name balancer.Name) *balancer.Service {
	s := &balancer.Service{Name: name}
	address := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(3))}) }
	s.VIPs = append(s.VIPs, address())
	if r.IntN(3) == 0 {
		s.Allocated = append(s.Allocated, address())
	}
	for i := range 1 + r.IntN(2) {
		p := balancer.Port{Port: uint16(80 + i), Protocol: []balancer.Protocol{balancer.TCP, balancer.UDP}[r.IntN(2)]}
		if r.IntN(3) == 0 {
			p.NodePort = uint16(30000 + r.IntN(3))
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// FuzzGiven: whatever a file holds, it is read as services that are right, or something is said to be wrong.
func FuzzGiven(f *testing.F) {
	for _, text := range []string{
		"", "{", "{}", `{"services": 1}`, `{"services": {"a": []}, "x": 1}`, `{"a": {"vips": ["auto"], "ports": [{"port": 1}], "x": null}}`,
		"[services.a]\nvips = [\"10.0.0.1\"]\nports = [{ port = 80 }]\nx = 1979-05-27\n", "services = 1", "[[services.a]]", "[defaults]\n[nonsense]", "\ufeff{}",
		`{"a": {"vips": ["10.0.0.1"], "vips": []}}`, "[services.\"A b\"]\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		g := &given{services: map[balancer.Name]*written{}}
		g.add("x", text)
		wrong := slices.ContainsFunc(g.problems, isError)
		for name, w := range g.services {
			if w.service == nil && !wrong {
				t.Errorf("service %s is not right, and nothing is said", name)
			}
			for _, p := range w.unknown {
				if p.Severity != balancer.SeverityWarning || p.Field == "" {
					t.Errorf("unknown field: %+v", p)
				}
			}
		}
		if len(g.services) == 0 && len(g.bare) == 0 && !wrong {
			t.Error("nothing is read, and nothing is said")
		}
	})
}
