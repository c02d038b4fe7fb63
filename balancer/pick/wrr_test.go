package pick

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"vipd/balancer"
)

// literal is a simple, direct implementation of smooth weighted round robin.
type literal struct{ weight, credit []int }

// pick returns the member with the most credit among the members that are not in out.
func (l *literal) pick(out []bool) int {
	best := l.best(make([]bool, len(out)))
	if best >= 0 && !out[best] {
		out = make([]bool, len(out))
	}
	best = l.best(out)
	if best < 0 {
		return -1
	}
	for i, w := range l.weight {
		if !out[i] {
			l.credit[i] += w
			l.credit[best] -= w
		}
	}
	return best
}

func (l *literal) best(out []bool) int {
	best := -1
	for i, w := range l.weight {
		if !out[i] && (best < 0 || l.credit[i]+w > l.credit[best]+l.weight[best]) {
			best = i
		}
	}
	return best
}

// TestWeightedIsSmoothRoundRobin picks with random weights, with and without skips. Each pick must
// equal the pick of literal, the direct implementation.
func TestWeightedIsSmoothRoundRobin(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 60 {
		weights := someWeights(r, 1+r.IntN(30))
		p := New(balancer.WeightedRoundRobin, active(weights...), nil)
		model := &literal{weights, make([]int, len(weights))}
		skips := r.Float64() * float64(r.IntN(2))
		for n := range 400 {
			out := make([]bool, len(weights))
			for i := range out {
				out[i] = r.Float64() < skips
			}
			skip := skipping(out)
			if skips == 0 && n%2 == 0 {
				skip = nil
			}
			if got, want := p.Pick(Flow{}, skip), model.pick(out); got != want {
				t.Fatalf("pick %d with weights %v, skipped %v = %d, want %d", n, weights, out, got, want)
			}
		}
	}
}

// TestWeightedIsExactAndSmooth makes all picks in several cycles. In each cycle, a member's number
// of picks must equal its weight. None of the n members may ever be ahead of its share by a whole
// pick, or behind its share by more than 1 + 1/2 + ... + 1/n picks.
func TestWeightedIsExactAndSmooth(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for range 40 {
		weights := make([]int, 1+r.IntN(40))
		factor := 1 + r.IntN(1000)
		for i := range weights {
			weights[i] = factor * (1 + r.IntN(60))
		}
		sum, common, behind := 0, 0, 0.0
		for i, w := range weights {
			sum, common, behind = sum+w, gcd(w, common), behind+1/float64(i+1)
		}
		p := New(balancer.WeightedRoundRobin, active(weights...), nil)
		counts := make([]int, len(weights))
		for n := 1; n <= 2*sum/common; n++ {
			counts[p.Pick(Flow{}, nil)]++
			for i, w := range weights {
				ahead := float64(counts[i]) - float64(n)*float64(w)/float64(sum)
				if ahead > 1-1e-9 && len(weights) > 1 || -ahead > behind {
					t.Fatalf("weights %v after %d picks: backend %d is ahead of its share by %.3f, want -%.3f to 1", weights, n, i, ahead, behind)
				}
			}
			if n%(sum/common) == 0 {
				for i, w := range weights {
					if want := n * w / sum; counts[i] != want {
						t.Fatalf("weights %v after %d picks: picks of backend %d = %d, want %d", weights, n, i, counts[i], want)
					}
				}
			}
		}
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// TestWeightedNoCatchUpAfterSkip temporarily skips a member, as if it were full. The other members
// must share its picks by weight. Afterwards, the member must get only its normal share of the
// picks.
func TestWeightedNoCatchUpAfterSkip(t *testing.T) {
	p := New(balancer.WeightedRoundRobin, active(5, 3, 2, 10), nil)
	counts := make([]int, 4)
	for range 1000 {
		counts[p.Pick(Flow{}, func(i int) bool { return i == 3 })]++
	}
	for i, want := range []int{500, 300, 200, 0} {
		if math.Abs(float64(counts[i]-want)) > 3 {
			t.Errorf("picks of backend %d while backend 3 is skipped = %d, want %d ± 3", i, counts[i], want)
		}
	}
	counts = make([]int, 4)
	for range 200 {
		counts[p.Pick(Flow{}, nil)]++
	}
	for i, want := range []int{50, 30, 20, 100} {
		if math.Abs(float64(counts[i]-want)) > 2 {
			t.Errorf("picks of backend %d afterwards = %d, want %d ± 2", i, counts[i], want)
		}
	}
}

// TestWeightedContinuesAcrossGenerations creates new generations of a picker with the same weights.
// The picks must be the same as without new generations.
func TestWeightedContinuesAcrossGenerations(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 30 {
		weights := someWeights(r, 1+r.IntN(50))
		once := New(balancer.WeightedRoundRobin, active(weights...), nil)
		again := New(balancer.WeightedRoundRobin, active(weights...), nil)
		for n := range 500 {
			if r.IntN(3) == 0 {
				again = Next(again, balancer.WeightedRoundRobin, active(weights...), nil)
			}
			if got, want := again.Pick(Flow{}, nil), once.Pick(Flow{}, nil); got != want {
				t.Fatalf("with new generations: pick %d of weights %v = %d, want %d", n, weights, got, want)
			}
		}
	}
}

// TestWeightedSharesDespiteChanges creates a new generation of the picker before every pick, with
// different members and weights. Over time, each member must get picks in proportion to its share
// of the weights.
func TestWeightedSharesDespiteChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	const stay, all, picks = 6, 10, 20000
	var p Picker
	got, want := make([]float64, all), make([]float64, all)
	for range picks {
		weights, factor, sum := make([]int, all), []int{1, 10, 1000}[r.IntN(3)], 0
		for i := range weights {
			weights[i] = factor * (1 + i%3)
			if i >= stay && r.IntN(2) == 0 {
				weights[i] = 0
			}
			sum += weights[i]
		}
		for i := range want {
			want[i] += float64(weights[i]) / float64(sum)
		}
		p = Next(p, balancer.WeightedRoundRobin, active(weights...), nil)
		got[p.Pick(Flow{}, nil)]++
	}
	for i := range got {
		if math.Abs(got[i]/want[i]-1) > 0.05 {
			t.Errorf("picks per backend = %.0f, want %.0f ± 5 %%", got, want)
			break
		}
	}
}

// TestWeightedReplacedMembers replaces the members that have not yet been picked in the current
// cycle with new members. The members that have already been picked must be picked again before the
// new members.
func TestWeightedReplacedMembers(t *testing.T) {
	backends := even(15)
	p := New(balancer.WeightedRoundRobin, backends[:10], nil)
	for range 5 {
		p.Pick(Flow{}, nil)
	}
	p = Next(p, balancer.WeightedRoundRobin, slices.Delete(backends, 5, 10), nil)
	var got []int
	for range 10 {
		got = append(got, p.Pick(Flow{}, nil))
	}
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(got, want) {
		t.Errorf("picks after the replacement = %v, want %v", got, want)
	}
}

// TestWeightedNewMember adds a member to a picker that has made many picks. From then on, the new
// member must get its share of the picks, without a burst or a pause at the start.
func TestWeightedNewMember(t *testing.T) {
	p := New(balancer.WeightedRoundRobin, even(9), nil)
	for range 1000 {
		p.Pick(Flow{}, nil)
	}
	p = Next(p, balancer.WeightedRoundRobin, even(10), nil)
	var picks []int
	for range 30 {
		picks = append(picks, p.Pick(Flow{}, nil))
	}
	joined := 0
	for _, i := range picks {
		if i == 9 {
			joined++
		}
	}
	if joined < 2 || joined > 4 || !slices.Contains(picks[:15], 9) {
		t.Errorf("picks of the new backend = %d of 30, want 2 to 4, with the first among the first 15 picks: %v", joined, picks)
	}
}
