package pick

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"vipd/balancer"
)

func schedulers() []balancer.Scheduler {
	var all []balancer.Scheduler
	for _, name := range balancer.Scheduler("").Values() {
		all = append(all, balancer.Scheduler(name))
	}
	return all
}

// addressOf returns the address of backend n.
func addressOf(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), 8080)
}

// active returns a backend in the state Active for each weight, in the order of their addresses.
func active(weights ...int) []balancer.Backend {
	backends := make([]balancer.Backend, len(weights))
	for i, w := range weights {
		backends[i] = balancer.Backend{Addr: addressOf(i), State: balancer.Active, Weight: w}
	}
	return backends
}

// even returns n backends of weight 1.
func even(n int) []balancer.Backend { return active(slices.Repeat([]int{1}, n)...) }

// without returns a copy of backends that lacks element i.
func without(backends []balancer.Backend, i int) []balancer.Backend {
	return slices.Delete(slices.Clone(backends), i, i+1)
}

// someWeights returns n random weights, up to a maximum that is also random.
func someWeights(r *rand.Rand, n int) []int {
	most := []int{1, 3, 10, 100, balancer.MaxWeight}[r.IntN(5)]
	weights := make([]int, n)
	for i := range weights {
		weights[i] = 1 + r.IntN(most)
	}
	return weights
}

// clientOf returns the address of client n. The clients have neighboring addresses, as in a single
// network.
func clientOf(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, byte(n >> 16), byte(n >> 8), byte(n)}), uint16(1024+n%60000))
}

func flowOf(n int) Flow {
	return Flow{Client: clientOf(n), VIP: netip.MustParseAddrPort("10.96.0.10:80")}
}

// skipping returns a function that reports whether set contains a member. Pick skips these members.
func skipping(set []bool) func(int) bool { return func(i int) bool { return set[i] } }

// chiSquare fails the test if random draws with the given weights are very unlikely to result in
// counts. A false failure is a matter of one in millions.
func chiSquare(t *testing.T, what string, counts, weights []int) {
	t.Helper()
	total, sum := 0, 0
	for i := range counts {
		total += counts[i]
		sum += weights[i]
	}
	chi, free := 0.0, -1.0
	for i := range counts {
		want := float64(total) * float64(weights[i]) / float64(sum)
		if want == 0 {
			if counts[i] != 0 {
				t.Errorf("%s: backend %d has weight 0: picks = %d, want 0", what, i, counts[i])
			}
			continue
		}
		chi += (float64(counts[i]) - want) * (float64(counts[i]) - want) / want
		free++
	}
	if limit := free + 6*math.Sqrt(2*free) + 20; chi > limit {
		t.Errorf("%s: chi-square = %.1f with %.0f degrees of freedom, want at most %.1f; picks = %v, weights = %v", what, chi, free, limit, counts, weights)
	}
}

// TestPickChoosesUsableBackend runs every scheduler with backends in random states, and skips
// random backends. A picked backend must be Active, have a weight greater than 0 and not be
// skipped. Pick must return -1 if and only if there is no such backend.
func TestPickChoosesUsableBackend(t *testing.T) {
	states := []balancer.BackendState{
		balancer.Active, balancer.Active, balancer.Active, balancer.Standby, balancer.Remote, balancer.ZeroWeight,
		balancer.Draining, balancer.Down, balancer.Removed,
	}
	for _, s := range append(schedulers(), "unknown") {
		t.Run(string(s), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 1))
			var p Picker
			for range 60 {
				backends := make([]balancer.Backend, r.IntN(20))
				loads, out := make([]int64, len(backends)), make([]bool, len(backends))
				for i, n := range r.Perm(len(backends)) {
					backends[i] = balancer.Backend{Addr: addressOf(n), State: states[r.IntN(len(states))], Weight: r.IntN(4)}
				}
				p = Next(p, s, backends, func(i int) int64 { return loads[i] })
				for n := range 40 {
					dense := r.Float64() * 1.2
					left := 0
					for i, b := range backends {
						out[i], loads[i] = r.Float64() < dense, r.Int64N(3)
						if b.State == balancer.Active && b.Weight > 0 && !out[i] {
							left++
						}
					}
					i := p.Pick(flowOf(n), skipping(out))
					if i < 0 && left > 0 || i >= 0 && left == 0 {
						t.Fatalf("pick = %d, usable backends = %d, want a backend if and only if one is usable; backends = %+v, skipped = %v", i, left, backends, out)
					}
					if i >= 0 && (out[i] || backends[i].State != balancer.Active || backends[i].Weight < 1) {
						t.Fatalf("pick = %d, want an Active backend that has a weight and is not skipped; backends = %+v, skipped = %v", i, backends, out)
					}
				}
			}
		})
	}
}

// TestBackendOrderIsIrrelevant shuffles the backends. The picked backends must be the same as
// without shuffling.
func TestBackendOrderIsIrrelevant(t *testing.T) {
	for _, s := range schedulers() {
		if s == balancer.Random {
			continue
		}
		r := rand.New(rand.NewPCG(2, 2))
		a := active(someWeights(r, 30)...)
		b := make([]balancer.Backend, len(a))
		for i, n := range r.Perm(len(a)) {
			b[i] = a[n]
		}
		p, q := New(s, a, nil), New(s, b, nil)
		for n := range 300 {
			if got, want := b[q.Pick(flowOf(n), nil)].Addr, a[p.Pick(flowOf(n), nil)].Addr; got != want {
				t.Fatalf("%s: pick %d of the shuffled backends = %s, want %s", s, n, got, want)
			}
		}
	}
}

// TestConcurrentPicks picks in several goroutines while new generations of the picker are created.
// If a scheduler gives backends exact shares, the shares must stay exact.
func TestConcurrentPicks(t *testing.T) {
	const workers, cycles = 8, 40
	for _, s := range schedulers() {
		t.Run(string(s), func(t *testing.T) {
			weights := []int{1, 2, 3, 4}
			cycle := 10
			if s == balancer.RoundRobin {
				weights, cycle = []int{1, 1, 1, 1}, 4
			}
			var mu sync.Mutex
			loads, counts := make([]int64, 4), make([]int, 4)
			p := New(s, active(weights...), func(i int) int64 {
				mu.Lock()
				defer mu.Unlock()
				return loads[i]
			})
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					for n := range cycles * cycle {
						i := p.Pick(flowOf(w*n), func(i int) bool { return i < 0 })
						if n%cycle == 0 {
							Next(p, s, active(weights...), nil).Pick(flowOf(n), nil)
						}
						mu.Lock()
						loads[i]++
						counts[i]++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if s != balancer.RoundRobin && s != balancer.WeightedRoundRobin {
				return
			}
			want := make([]int, 4)
			for i, w := range weights {
				want[i] = w * workers * cycles
			}
			if !slices.Equal(counts, want) {
				t.Errorf("picks per backend = %v, want %v", counts, want)
			}
		})
	}
}

func ExampleNew() {
	backends := []balancer.Backend{
		{Addr: netip.MustParseAddrPort("192.168.1.11:80"), State: balancer.Active, Weight: 2},
		{Addr: netip.MustParseAddrPort("192.168.1.12:80"), State: balancer.Active, Weight: 1},
		{Addr: netip.MustParseAddrPort("192.168.1.13:80"), State: balancer.Draining},
	}
	p := New(balancer.WeightedRoundRobin, backends, nil)
	for range 6 {
		fmt.Println(backends[p.Pick(Flow{}, nil)].Addr)
	}
	// Output:
	// 192.168.1.11:80
	// 192.168.1.12:80
	// 192.168.1.11:80
	// 192.168.1.11:80
	// 192.168.1.12:80
	// 192.168.1.11:80
}

// TestSharesByWeight gives one of two backends nine tenths of the weight. The backend must get nine
// tenths of the connections if and only if SharesByWeight returns true for the scheduler.
func TestSharesByWeight(t *testing.T) {
	for _, s := range schedulers() {
		var loads [2]int64
		p := New(s, active(1, 9), func(i int) int64 { return loads[i] })
		const flows = 4000
		for n := range flows {
			loads[p.Pick(flowOf(n), nil)]++
		}
		follows := math.Abs(float64(loads[1])/flows-0.9) < 0.04
		if follows != s.SharesByWeight() {
			t.Errorf("%s: weights 1 and 9: connections = %v, want shares by weight = %t", s, loads, s.SharesByWeight())
		}
	}
}
