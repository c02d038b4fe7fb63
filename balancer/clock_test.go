package balancer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"vipd/balancer"
)

// TestAdjustClock sets the clock forward and back during random drains and slow starts. With
// AdjustClock, they must proceed as if the clock had not been set.
func TestAdjustClock(t *testing.T) {
	drained, ramped := 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		steady, set := newRamping(t), newRamping(t)
		for i := range 60 {
			d := time.Duration(r.Int64N(int64(4 * time.Second)))
			if r.IntN(4) == 0 {
				by := time.Duration(r.Int64N(int64(80*365*24*time.Hour))) - 40*365*24*time.Hour
				set.now, set.memory = set.now.Add(by), set.memory.AdjustClock(by)
			}
			n, down, v := 1+r.IntN(4), r.IntN(4), balancer.HealthUp
			if r.IntN(2) == 0 {
				v = balancer.HealthDown
			}
			var got [2]string
			for j, c := range []*ramping{steady, set} {
				c.service(n, func(s *balancer.Service) { s.DrainTimeout = 10 * time.Second })
				c.verdict(down, v)
				got[j] = c.after(d)
			}
			next := [2]time.Duration{steady.left(), set.left()}
			if got[0] != got[1] || next[0] != next[1] {
				t.Fatalf("seed %d, step %d: steady clock: %s, next expiry in %s; adjusted clock: %s, %s", seed, i, got[0], next[0], got[1], next[1])
			}
			drained, ramped = drained+steady.memory.Drains.Len(), ramped+steady.memory.Ramps.Len()
		}
	}
	if drained < 100 || ramped < 100 {
		t.Errorf("drains = %d, ramps = %d; want at least 100 each", drained, ramped)
	}
}

// left returns the time until the next entry of the memory expires, or 0 if none expires.
func (r *ramping) left() time.Duration {
	if next := r.memory.NextExpiry(); !next.IsZero() {
		return next.Sub(r.now)
	}
	return 0
}

// TestRampWithSteppedClock sets the clock far forward or back during the ramp of a slow start,
// without AdjustClock. A step forward must end the ramp. After a step back, the ramp must continue.
func TestRampWithSteppedClock(t *testing.T) {
	for _, years := range []time.Duration{-250, -100, -30, -1, 1, 30, 100, 250} {
		r := newRamping(t)
		r.service(1, nil)
		r.compiled()
		r.service(2, nil)
		want(t, "one joins", r.compiled(), "0:active/10 1:active/1")
		then := "0:active/1 1:active/1"
		if years < 0 {
			then = "0:active/10 1:active/1"
		}
		want(t, fmt.Sprint("after years: ", int(years)), r.after(years*365*24*time.Hour), then)
		if ramps := r.memory.Ramps.Len(); (ramps > 0) != (years < 0) {
			t.Errorf("clock set by %d years: ramps = %d, want a ramp only if the clock was set back: %t", years, ramps, years < 0)
		}
	}
}
