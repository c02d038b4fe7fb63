package balancer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/test/wait"
)

// TestClaimConflictsLaw changes random services. If two services claim the same key, a new conflict
// must be reported once, and an old conflict once for each service that changes. If a claim has
// many rivals, the problems must name maxRivals of them and count the others.
func TestClaimConflictsLaw(t *testing.T) {
	for seed := range uint64(wait.Soak(60, 300)) {
		r := rand.New(rand.NewPCG(seed, 3))
		most := []int{7, 120}[seed%2]
		before, had := map[Name]*Service{}, map[Name]map[Key]string{}
		for n := range r.IntN(most) {
			name := Name(fmt.Sprint("s", n))
			before[name] = conflictingService(r, name)
			had[name] = before[name].Claims()
		}
		changes := map[Name]*Service{}
		has := map[Name]map[Key]string{}
		changed := map[Name]int{}
		for n := range most {
			name := Name(fmt.Sprint("s", n))
			has[name] = had[name]
			switch r.IntN(3) {
			case 0:
				changes[name] = conflictingService(r, name)
				has[name], changed[name] = changes[name].Claims(), 1
			case 1:
				changes[name] = nil
				delete(has, name)
			}
		}
		all := slices.DeleteFunc(ClaimConflicts(before, changes), func(c ClaimConflict) bool { return c.Key.Port == 0 })
		named, got := texts(t, all)
		want := map[string]int{}
		for a := range has {
			for b := range has {
				for key := range has[a] {
					if _, both := has[b][key]; !both || a >= b || changed[a]+changed[b] == 0 {
						continue
					}
					_, hadA := had[a][key]
					_, hadB := had[b][key]
					text, times := contestText(a, b, key, false), changed[a]+changed[b] // an old conflict is reported for each service that changes
					isNew := changed[a] > 0 && !hadA || changed[b] > 0 && !hadB
					if isNew {
						text, times = contestText(a, b, key, true), 1
					}
					if named[text] > times {
						t.Fatalf("seed %d: conflict %s: reports = %d, want at most %d", seed, text, named[text], times)
					}
					delete(named, text)
					want[contestText("", "", key, isNew)] += times
				}
			}
		}
		if len(named) > 0 {
			t.Fatalf("seed %d: reported conflicts between services without a conflict: %v", seed, named)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d: rivals per claim =\n%v\nwant\n%v", seed, got, want)
		}
	}
}

// texts counts how often each conflict is reported (named), and the rivals of each claim, including
// unnamed rivals (total).
func texts(t *testing.T, all []ClaimConflict) (named, total map[string]int) {
	t.Helper()
	named, total = map[string]int{}, map[string]int{}
	of := map[string]int{}
	for _, c := range all {
		claim := contestText(c.Service.Name, "", c.Key, false)
		p := c.Problem()
		of[claim]++
		if p.Kind != Held || of[claim] > maxRivals || c.More > 0 && of[claim] != maxRivals ||
			strings.Contains(p.Text, fmt.Sprint(" and ", c.More, " more")) != (c.More > 0) {
			t.Fatalf("%v: kind = %q, want %q; named rivals so far = %d, want at most %d; unnamed rivals = %d, want 0 in all but the last problem", p, p.Kind, Held, of[claim], maxRivals, c.More)
		}
		named[contestText(c.Service.Name, c.Rival.Name, c.Key, c.New)]++
		total[contestText("", "", c.Key, c.New)] += 1 + c.More
	}
	return named, total
}

func contestText(a, b Name, key Key, isNew bool) string {
	return fmt.Sprint(min(a, b), " and ", max(a, b), " at ", key.Addr, " ", key.Port, "/", key.Proto, ", new: ", isNew)
}

func conflictingService(r *rand.Rand, name Name) *Service {
	s := &Service{Name: name}
	address := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(3))}) }
	s.VIPs = append(s.VIPs, address())
	if r.IntN(3) == 0 {
		s.Allocated = append(s.Allocated, address())
	}
	for i := range 1 + r.IntN(2) {
		p := Port{Port: PortRange(80 + i), Protocol: []Protocol{TCP, UDP}[r.IntN(2)]}
		if r.IntN(3) == 0 {
			p.NodePort = uint16(30000 + r.IntN(3))
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// TestClaimConflictsOfPoolAddress adds an address to a definition after a pool has given the
// address to another service. The change must be a conflict, unless the definition already
// contained the address.
func TestClaimConflictsOfPoolAddress(t *testing.T) {
	vip := netip.MustParseAddr("10.99.0.1")
	holder, thief := &Service{Name: "holder", Allocated: []netip.Addr{vip}}, &Service{Name: "thief", VIPs: []netip.Addr{vip}}
	for _, c := range []struct {
		name   string
		before map[Name]*Service
		want   string
	}{
		{"new", map[Name]*Service{"holder": holder}, "service thief: vips[0]: 10.99.0.1 is allocated to service holder by a pool: choose another address"},
		{"as before", map[Name]*Service{"holder": holder, "thief": thief}, ""},
		{"free", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			for _, contest := range ClaimConflicts(c.before, map[Name]*Service{"thief": thief}) {
				got += contest.Problem().String()
			}
			if got != c.want {
				t.Errorf("conflicts = %q, want %q", got, c.want)
			}
		})
	}
}
