package pick

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"vipd/balancer"
)

// cost returns the cost of a member with c connections and weight w. A least-connection scheduler
// is defined to pick a member of minimum cost.
func cost(s balancer.Scheduler, c, w int64) *big.Rat {
	switch {
	case s == balancer.LeastConn:
		return big.NewRat(c, 1)
	case s == balancer.WeightedLeastConn:
		return big.NewRat(c, w)
	case s == balancer.NeverQueue && c == 0:
		return big.NewRat(-1, 1) // members without connections come first, and have equal costs
	}
	return big.NewRat(c+1, w)
}

func leastSchedulers() []balancer.Scheduler {
	return []balancer.Scheduler{balancer.LeastConn, balancer.WeightedLeastConn, balancer.ShortestDelay, balancer.NeverQueue}
}

// TestLeastPicksMinimum compares the cost of each picked member with the costs of all members that
// are not skipped. No member may have a lower cost.
func TestLeastPicksMinimum(t *testing.T) {
	for _, s := range leastSchedulers() {
		t.Run(string(s), func(t *testing.T) {
			r := rand.New(rand.NewPCG(10, 10))
			for range 300 {
				weights := someWeights(r, 1+r.IntN(20))
				loads, out := make([]int64, len(weights)), make([]bool, len(weights))
				p := New(s, active(weights...), func(i int) int64 { return loads[i] })
				for range 20 {
					most := []int64{1, 3, 1000, 1 << 40}[r.IntN(4)]
					var least *big.Rat
					for i := range loads {
						loads[i], out[i] = r.Int64N(most), r.IntN(4) == 0
						if c := cost(s, loads[i], int64(weights[i])); !out[i] && (least == nil || c.Cmp(least) < 0) {
							least = c
						}
					}
					i := p.Pick(Flow{}, skipping(out))
					if least == nil && i < 0 {
						continue
					}
					if i < 0 || out[i] || cost(s, loads[i], int64(weights[i])).Cmp(least) != 0 {
						t.Fatalf("pick = %d with loads %v and weights %v, skipped = %v, want a backend of cost %s", i, loads, weights, out, least)
					}
				}
			}
		})
	}
}

// TestLeastRotatesTies picks among members of equal cost, while new generations of the picker are
// created. The picks must rotate among the members.
func TestLeastRotatesTies(t *testing.T) {
	for _, s := range leastSchedulers() {
		loads := []int64{7, 0, 0, 9, 0}
		load := func(i int) int64 { return loads[i] }
		p := New(s, even(5), load)
		var got []int
		for range 7 {
			got = append(got, p.Pick(Flow{}, nil))
			p = Next(p, s, even(5), load)
		}
		if want := []int{1, 2, 4, 1, 2, 4, 1}; !slices.Equal(got, want) {
			t.Errorf("%s: picks = %v, want %v", s, got, want)
		}
	}
}

// TestLeastFollowsWeights keeps all connections open. Each member's number of connections must
// follow its weight. With the scheduler "lc", the numbers must be equal.
func TestLeastFollowsWeights(t *testing.T) {
	weights := []int{1, 2, 3, 4}
	for _, s := range leastSchedulers() {
		loads := make([]int64, 4)
		p := New(s, active(weights...), func(i int) int64 { return loads[i] })
		for range 1000 {
			loads[p.Pick(Flow{}, nil)]++
		}
		for i, w := range weights {
			want := int64(w * 100)
			if s == balancer.LeastConn {
				want = 250
			}
			if loads[i] < want-2 || loads[i] > want+2 {
				t.Errorf("%s: connections of backends with weights %v = %v, want connections of backend %d = %v ± 2", s, weights, loads, i, want)
				break
			}
		}
	}
}
