package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/test/wait"
)

// TestContestsLaw: each key that two services would have is told once, if one of them changes; as an error exactly
// where a change brings it about. Of many others, one service names mostTold, and how many more there are.
func TestContestsLaw(t *testing.T) {
	for seed := range uint64(wait.Soak(60, 300)) {
		r := rand.New(rand.NewPCG(seed, 3))
		most := []int{7, 120}[seed%2]
		before, had := map[balancer.Name]*balancer.Service{}, map[balancer.Name]map[balancer.Key]string{}
		for n := range r.IntN(most) {
			name := balancer.Name(fmt.Sprint("s", n))
			before[name] = crowded(r, name)
			had[name] = before[name].Claims()
		}
		var changes []*intent
		has := map[balancer.Name]map[balancer.Key]string{}
		changed := map[balancer.Name]int{}
		for n := range most {
			name := balancer.Name(fmt.Sprint("s", n))
			has[name] = had[name]
			i := &intent{Name: name, What: []outcome{createdService, removedService, unchangedService, ""}[r.IntN(4)]}
			switch i.What {
			case "":
				continue
			case createdService:
				i.service = crowded(r, name)
				has[name], changed[name] = i.service.Claims(), 1
			case removedService:
				delete(has, name)
			}
			changes = append(changes, i)
		}
		r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		named, got := toldOf(t, contests(before, changes))
		want := map[string]int{}
		for a := range has {
			for b := range has {
				for key := range has[a] {
					if _, both := has[b][key]; !both || a >= b || changed[a]+changed[b] == 0 {
						continue
					}
					_, hadA := had[a][key]
					_, hadB := had[b][key]
					text, times := contestText(a, b, key, false), changed[a]+changed[b] // what was there before is told of each that changes
					isNew := changed[a] > 0 && !hadA || changed[b] > 0 && !hadB
					if isNew {
						text, times = contestText(a, b, key, true), 1
					}
					if named[text] > times {
						t.Fatalf("seed %d: %s is told %d times, want %d at most", seed, text, named[text], times)
					}
					delete(named, text)
					want[contestText("", "", key, isNew)] += times
				}
			}
		}
		if len(named) > 0 {
			t.Fatalf("seed %d: told without reason: %v", seed, named)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d: told, with those that are not named:\n%v\nwant\n%v", seed, got, want)
		}
	}
}

// toldOf counts how often each contest is told, and each claim with those that are not named.
func toldOf(t *testing.T, all []contest) (named, total map[string]int) {
	t.Helper()
	named, total = map[string]int{}, map[string]int{}
	of := map[string]int{}
	for _, c := range all {
		claim := fmt.Sprint(c.intent.Name, " at ", claimText(c.key))
		p := c.problem()
		of[claim]++
		if p.Kind != balancer.Held || of[claim] > mostTold || c.more > 0 && of[claim] != mostTold ||
			strings.Contains(p.Text, fmt.Sprint(" and ", c.more, " more")) != (c.more > 0) {
			t.Fatalf("%v is of the kind %q, number %d of its claim, and %d are not named", p, p.Kind, of[claim], c.more)
		}
		named[contestText(c.intent.Name, c.other.Name, c.key, c.isNew)]++
		total[contestText("", "", c.key, c.isNew)] += 1 + c.more
	}
	return named, total
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
		}
		for _, p := range g.problems {
			if p.Unknown && (p.Severity != balancer.SeverityWarning || p.Field == "") {
				t.Errorf("unknown field: %+v", p)
			}
		}
		if len(g.services) == 0 && len(g.bare) == 0 && !wrong {
			t.Error("nothing is read, and nothing is said")
		}
	})
}
