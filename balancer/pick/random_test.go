package pick

import (
	"math/rand/v2"
	"testing"

	"vipd/balancer"
)

// seededRandom returns a random picker whose random numbers are from r, so its picks are the same
// each time the test runs.
func seededRandom(r *rand.Rand, weights []int) *weightedRandom {
	p := newRandom(candidatesOf(active(weights...)))
	p.draw = r.Int64N
	return p
}

// TestRandomDrawsByWeight skips a few or many members. The other members must be picked in
// proportion to their weights.
func TestRandomDrawsByWeight(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for range 60 {
		weights := someWeights(r, 1+r.IntN(30))
		p := seededRandom(r, weights)
		out, left := make([]bool, len(weights)), make([]int, len(weights))
		dense := r.Float64()
		for i, w := range weights {
			if out[i] = r.Float64() < dense; !out[i] || i == 0 {
				out[i], left[i] = false, w
			}
		}
		all, some := make([]int, len(weights)), make([]int, len(weights))
		for range 20000 {
			all[p.Pick(Flow{}, nil)]++
			some[p.Pick(Flow{}, skipping(out))]++
		}
		chiSquare(t, "all", all, weights)
		chiSquare(t, "not skipped", some, left)
	}
}

// TestRandomDiffersBetweenPickers creates two random pickers with the same members. They must make
// different picks.
func TestRandomDiffersBetweenPickers(t *testing.T) {
	p, q := New(balancer.Random, even(100), nil), New(balancer.Random, even(100), nil)
	same := 0
	for range 1000 {
		if p.Pick(Flow{}, nil) == q.Pick(Flow{}, nil) {
			same++
		}
	}
	if same > 100 {
		t.Errorf("equal picks = %d of 1000, want about 10", same)
	}
}
