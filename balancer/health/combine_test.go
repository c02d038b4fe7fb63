package health_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
)

// TestCombine combines random states of a target's checks. The combined verdict must follow from
// how many checks have each verdict. Its time must be since when the checks' verdicts have led to
// it.
func TestCombine(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	verdicts := []balancer.Verdict{balancer.HealthUnknown, balancer.HealthUp, balancer.HealthDown}
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 0))
		states := make([]health.State, 1+r.IntN(4))
		count := map[balancer.Verdict]int{}
		for i := range states {
			s := &states[i]
			s.Verdict = verdicts[r.IntN(len(verdicts))]
			s.Since = start.Add(time.Duration(r.IntN(100)) * time.Second)
			s.Due = start.Add(time.Duration(r.IntN(100)) * time.Second)
			s.Streak = r.IntN(2)
			count[s.Verdict]++
		}
		need := balancer.NeedAllHealth
		alone, together := balancer.HealthDown, balancer.HealthUp
		if r.IntN(2) == 0 {
			need, alone, together = balancer.NeedAnyHealth, together, alone
		}
		want := balancer.HealthUnknown
		switch {
		case count[alone] > 0:
			want = alone
		case count[together] == len(states):
			want = together
		}
		got := health.Combine(states, need)
		if got.Verdict != want || states[got.Decides].Verdict != want || states[got.Shown].Verdict != want {
			t.Fatalf("seed %d: Combine(%+v, %s) = %+v, want verdict %q", seed, states, need, got, want)
		}
		turning := false
		for _, s := range states {
			if s.Due.Before(got.Due) {
				t.Fatalf("seed %d: Combine(%+v).Due = %s, want the earliest Due of the checks", seed, states, got.Due)
			}
			turning = turning || s.Verdict == want && s.Turning()
			if s.Verdict == want && (want == alone && s.Since.Before(got.Since) || want == together && s.Since.After(got.Since)) {
				t.Fatalf("seed %d: Combine(%+v, %s).Since = %s, want when the checks began to lead to the verdict", seed, states, need, got.Since)
			}
		}
		if got.Turning() != turning {
			t.Fatalf("seed %d: Combine(%+v, %s).Turning() = %v, want %v", seed, states, need, got.Turning(), turning)
		}
	}
}

// TestCombineAssumed combines verdicts that were assumed from other nodes with verdicts of this
// node's own checks. The combined verdict must count as assumed unless this node's own verdicts are
// sufficient for it.
func TestCombineAssumed(t *testing.T) {
	up, down := health.State{Verdict: balancer.HealthUp}, health.State{Verdict: balancer.HealthDown}
	assumed := func(s health.State) health.State { s.Assumed = true; return s }
	for _, c := range []struct {
		states []health.State
		need   balancer.HealthNeed
		want   bool
	}{
		{[]health.State{up, assumed(up)}, "all", true},
		{[]health.State{assumed(down), down}, "all", false},
		{[]health.State{assumed(down), up}, "all", true},
		{[]health.State{assumed(up), up}, "any", false},
		{[]health.State{down, assumed(down)}, "any", true},
	} {
		if got := health.Combine(c.states, c.need).Assumed; got != c.want {
			t.Errorf("Combine(%+v, %s).Assumed = %v, want %v", c.states, c.need, got, c.want)
		}
	}
}
