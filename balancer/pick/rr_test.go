package pick

import (
	"math/rand/v2"
	"slices"
	"testing"

	"vipd/balancer"
)

// TestRoundRobinIgnoresWeights picks among n backends of different weights. Each backend must get
// every n-th pick.
func TestRoundRobinIgnoresWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 50 {
		backends := active(someWeights(r, 1+r.IntN(40))...)
		p := New(balancer.RoundRobin, backends, nil)
		for n := range 3 * len(backends) {
			if got, want := p.Pick(Flow{}, nil), n%len(backends); got != want {
				t.Fatalf("pick %d of %d backends = %d, want %d", n, len(backends), got, want)
			}
		}
	}
}

// TestRoundRobinSharesSkippedPicks skips some backends. The other backends must share the picks
// evenly.
func TestRoundRobinSharesSkippedPicks(t *testing.T) {
	p := New(balancer.RoundRobin, even(5), nil)
	counts := make([]int, 5)
	for range 400 {
		counts[p.Pick(Flow{}, func(i int) bool { return i == 2 })]++
	}
	if want := []int{100, 100, 0, 100, 100}; !slices.Equal(counts, want) {
		t.Errorf("picks per backend = %v, want %v", counts, want)
	}
}

// TestRoundRobinContinuesAfterChanges creates a new generation of the picker before every pick.
// Some backends join and leave all the time. The remaining backends' numbers of picks may differ by
// at most one.
func TestRoundRobinContinuesAfterChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	const stay, all, picks = 7, 12, 5000
	var p Picker
	counts := make(map[string]int)
	for range picks {
		var backends []balancer.Backend
		for i, n := range r.Perm(all) {
			b := balancer.Backend{Addr: addressOf(n), State: balancer.Active, Weight: 1}
			if n >= stay && r.IntN(2) == 0 {
				b.State = balancer.Down
			}
			backends = slices.Insert(backends, r.IntN(i+1), b)
		}
		p = Next(p, balancer.RoundRobin, backends, nil)
		counts[backends[p.Pick(Flow{}, nil)].Addr.String()]++
	}
	var got []int
	for n := range stay {
		got = append(got, counts[addressOf(n).String()])
	}
	if low, high := slices.Min(got), slices.Max(got); high-low > 1 || low < picks/all {
		t.Errorf("picks of the remaining backends = %v, want numbers that differ by at most one, and are at least %d", got, picks/all)
	}
}

// TestRoundRobinKeepsPosition creates generations of a picker that have no members, or that make no
// picks. The next generation must continue at the same backend.
func TestRoundRobinKeepsPosition(t *testing.T) {
	for _, s := range []balancer.Scheduler{balancer.RoundRobin, balancer.WeightedRoundRobin, balancer.LeastConn} {
		p := New(s, even(3), nil)
		for want := range 7 {
			if got := p.Pick(Flow{}, nil); got != want%3 {
				t.Fatalf("%s: pick %d = %d, want %d", s, want, got, want%3)
			}
			p = Next(p, s, nil, nil)
			if got := p.Pick(Flow{}, nil); got != -1 {
				t.Fatalf("%s: no backends: pick = %d, want -1", s, got)
			}
			p = Next(Next(p, s, nil, nil), s, even(3), nil)
			p = Next(p, s, even(3), nil)
		}
	}
}
