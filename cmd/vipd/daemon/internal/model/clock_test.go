package model

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestClockSteps repeatedly sets the wall clock to a random time. Each step must be detected once,
// the sum of steps must equal the change, and passing time must not count as a step.
func TestClockSteps(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		began := time.Now()
		c := newClock(began)
		var gone, set, told time.Duration
		for range 100 {
			gone += time.Duration(r.Int64N(int64(time.Hour)))
			step := time.Duration(0)
			if r.IntN(3) == 0 {
				step = time.Duration(r.Int64N(int64(20*365*24*time.Hour))) - 10*365*24*time.Hour
			}
			set += step
			blur := time.Duration(r.Int64N(int64(time.Millisecond))) // how far apart the two clocks are read
			got := c.stepped(began.Round(0).Add(gone+set+blur), gone)
			if told += got; step == 0 && got != 0 || (told-set).Abs() > time.Millisecond {
				t.Fatalf("seed %d: clock step = %s, reported as %s; sum = %s, reported as %s", seed, step, got, set, told)
			}
		}
	}
}

// TestPauseUntil computes the pause until times in the past and in the future. The pause must never
// be zero, or the loop would spin.
func TestPauseUntil(t *testing.T) {
	now := time.Now().Round(0)
	for ahead, want := range map[time.Duration]time.Duration{
		-40 * 365 * 24 * time.Hour: 100 * time.Millisecond, -1: 100 * time.Millisecond, 0: 100 * time.Millisecond,
		1: time.Millisecond, time.Second: time.Second,
	} {
		if got := pauseUntil(now.Add(ahead), now); got != want {
			t.Errorf("pauseUntil(now + %s, now) = %s, want %s", ahead, got, want)
		}
	}
}
