package health_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/test/wait"
)

// TestInStep: whatever the rules, and whenever a target of a crowd begins to turn, its checks come neither sooner than the
// fast interval allows nor later than the interval, never before the one before is over; and those that take as long each
// come at the wave's instants, where the interval leaves room for that.
func TestInStep(t *testing.T) {
	for seed := range uint64(wait.Soak(400, 2000)) {
		rng := rand.New(rand.NewPCG(seed, 3))
		r := randomRules(rng)
		start := time.Unix(1_700_000_000, 0)
		w := health.NewWave(r, start)
		if w.Crowd() || !w.Takes(r, start.Add(r.FastInterval)) || w.Takes(r, start.Add(r.FastInterval+1)) {
			t.Fatalf("seed %d: %+v is a crowd, or takes others than those of a fast interval", seed, w)
		}
		for range 10 {
			w = w.Joined(start)
		}
		takes := time.Duration(rng.Int64N(int64(r.Interval)))
		s := health.New(seed, start, 0).After(r, health.Result{Outcome: health.Passed, Began: start.Add(-r.Interval)})
		if got := s.InStep(r, w); got != s {
			t.Fatalf("seed %d: a target that is not turning is checked in step", seed)
		}
		r.Fall = 50
		began := start.Add(time.Duration(rng.Int64N(int64(r.FastInterval))))
		for i := range 20 {
			res := health.Result{Outcome: health.Failed, Began: began, Took: takes}
			s = s.After(r, res).InStep(r, w)
			gap := s.Due.Sub(began)
			if s.Verdict != balancer.HealthUp || gap < r.FastInterval*9/10 || gap > max(r.Interval, takes) || gap < takes {
				t.Fatalf("seed %d, check %d: it is checked again after %v, at %v to %v, while one takes %v", seed, i, gap, r.FastInterval, r.Interval, takes)
			}
			if late := s.Due.Sub(w.Origin) % r.FastInterval; i > 0 && 3*r.FastInterval < r.Interval && takes < r.FastInterval/2 && late != 0 {
				t.Fatalf("seed %d, check %d: it is checked %v after an instant", seed, i, late)
			}
			began = s.Due
		}
	}
}

// TestApartAgain: once a target that was checked in step has changed, or one that was checked early has not, its next
// check comes at any time between the fast interval and the interval: many such are not checked together for ever.
func TestApartAgain(t *testing.T) {
	r := health.Rules{Interval: time.Second, FastInterval: 200 * time.Millisecond, Rise: 1, Fall: 1}
	start := time.Unix(1_700_000_000, 0)
	slots := map[time.Duration]int{}
	for seed := range uint64(1000) {
		s := health.New(seed, start, 0).After(r, health.Result{Outcome: health.Passed, Began: start})
		at := start.Add(500 * time.Millisecond)
		s = s.Sooner(r, at).After(r, health.Result{Outcome: []health.Outcome{health.Passed, health.Failed}[seed%2], Began: at})
		slots[s.Due.Sub(at)/(100*time.Millisecond)]++
		if gap := s.After(r, health.Result{Outcome: s.Last.Outcome, Began: s.Due}).Due.Sub(s.Due); gap < 900*time.Millisecond {
			t.Fatalf("seed %d: and the one after that after %v already", seed, gap)
		}
	}
	for slot := range time.Duration(10) {
		if n := slots[slot]; slot < 2 && n > 0 || slot >= 2 && n < 90 {
			t.Errorf("%d of 1000 are checked again after %d00 ms", n, slot)
		}
	}
}
