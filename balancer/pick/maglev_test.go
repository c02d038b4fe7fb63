package pick

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/balancer/internal/hash"
)

// TestMaglevSlotsFollowWeights fills tables for few and for many members, with equal and with very
// different weights. Each member's number of slots must follow its weight.
func TestMaglevSlotsFollowWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 15))
	tables := [][]int{{1}, {1, 1}, {1, 65535}, {65535, 65534, 65533}, append(slices.Repeat([]int{1}, 999), 65535)}
	// In this table, each of 990 backends should get 1.9 slots on average. If all of them got only
	// one slot, the other ten backends would get too many slots.
	tables = append(tables, append(slices.Repeat([]int{63640}, 10), slices.Repeat([]int{19}, 990)...))
	for range 12 {
		tables = append(tables, someWeights(r, 1+r.IntN(1000)))
	}
	for _, weights := range tables {
		counts, sum := make([]int, len(weights)), 0
		for _, i := range maglevSlots(candidatesOf(active(weights...))) {
			counts[i]++
		}
		for _, w := range weights {
			sum += w
		}
		for i, w := range weights {
			want := maglevSize * float64(w) / float64(sum)
			if counts[i] < 1 || math.Abs(float64(counts[i])-want) > 1+want/100 {
				t.Errorf("slots of backend %d of %d, which has weight %d of %d = %d, want %.1f", i, len(weights), w, sum, counts[i], want)
				break
			}
		}
	}
}

// TestMaglevPriceLimitsWork computes what a slot costs. The price must be the greatest weight,
// halved only as often as the limit on visits requires.
func TestMaglevPriceLimitsWork(t *testing.T) {
	r := rand.New(rand.NewPCG(18, 18))
	for range 200 {
		weights := someWeights(r, 1+r.IntN(1000))
		if r.IntN(2) == 0 {
			weights[0] = balancer.MaxWeight
		}
		sum := 0
		for _, w := range weights {
			sum += w
		}
		visits := func(price int) int { return maglevSize * price / sum * len(weights) }
		want := slices.Max(weights)
		for want > 1 && visits(want) > maglevWork {
			want /= 2
		}
		if got := int(maglevPrice(candidatesOf(active(weights...)))); got != want {
			t.Fatalf("price = %d for %d backends with weights up to %d, want %d", got, len(weights), slices.Max(weights), want)
		}
	}
}

// TestMaglevMatchesPaper fills tables for members of equal weight. They must equal the tables of
// the algorithm in the Maglev paper.
func TestMaglevMatchesPaper(t *testing.T) {
	for _, n := range []int{1, 2, 7, 100} {
		members := candidatesOf(active(slices.Repeat([]int{3}, n)...))
		entry, next := slices.Repeat([]int{-1}, maglevSize), make([]int, n)
		permutation := func(i, j int) int {
			h := hashAddrPort(members[i].addr)
			offset, skip := h%maglevSize, hash.Mix(h+hash.Offset)%(maglevSize-1)+1
			return int((offset + uint64(j)*skip) % maglevSize)
		}
		for filled := 0; filled < maglevSize; {
			for i := 0; i < n && filled < maglevSize; i++ {
				for entry[permutation(i, next[i])] >= 0 {
					next[i]++
				}
				entry[permutation(i, next[i])] = i
				filled++
			}
		}
		for slot, got := range maglevSlots(members) {
			if int(got) != entry[slot] {
				t.Fatalf("%d backends: slot %d = %d, want %d", n, slot, got, entry[slot])
			}
		}
	}
}

// TestMaglevSharesTables creates generations of a picker with the same members. They must share one
// table, whatever the order of the backends is, and whichever backends are not members.
func TestMaglevSharesTables(t *testing.T) {
	p := New(balancer.Maglev, active(2, 3), nil).(*maglev)
	drained := append(active(2, 3), balancer.Backend{Addr: addressOf(9), State: balancer.Draining})
	slices.Reverse(drained)
	q := Next(p, balancer.Maglev, drained, nil).(*maglev)
	if p.table != q.table {
		t.Error("a generation with the same members has a new table")
	}
	if got := Next(q, balancer.Maglev, active(2, 4), nil).(*maglev); got.table == q.table {
		t.Error("a generation with new weights has the old table")
	}
	for n := range 1000 {
		if got, want := q.Pick(flowOf(n), nil), p.Pick(flowOf(n), nil); drained[got].Addr != addressOf(want) {
			t.Fatalf("backend of client %d in the next generation = %s, want %s as before", n, drained[got].Addr, addressOf(want))
		}
	}
}

// TestMaglevSkipsBackends skips a few backends, or almost all of them. All clients must be spread
// over the other backends in proportion to their weights, and each client must always get the same
// backend.
func TestMaglevSkipsBackends(t *testing.T) {
	for _, left := range []int{1, 2, 50, 99} {
		p, weights := New(balancer.Maglev, even(100), nil), make([]int, 100)
		counts := make([]int, 100)
		for i := range left {
			weights[i*100/left] = 1
		}
		skip := func(i int) bool { return weights[i] == 0 }
		for n := range 20000 {
			i := p.Pick(flowOf(n), skip)
			if again := p.Pick(flowOf(n), skip); again != i {
				t.Fatalf("picks for client %d = %d and %d, want equal picks", n, i, again)
			}
			counts[i]++
		}
		for i, w := range weights {
			if want := 20000 / left * w; math.Abs(float64(counts[i]-want)) > 0.3*float64(want) {
				t.Errorf("%d backends not skipped: clients of backend %d = %d, want about %d", left, i, counts[i], want)
			}
		}
	}
}

// TestMaglevMoreBackendsThanSlots uses more backends than the table has slots. Filling the table
// must end, and each pick must return a backend.
func TestMaglevMoreBackendsThanSlots(t *testing.T) {
	members := make([]balancer.Backend, maglevSize+10)
	r := rand.New(rand.NewPCG(16, 16))
	for i := range members {
		members[i] = balancer.Backend{Addr: addressOf(i), State: balancer.Active, Weight: 1 + r.IntN(balancer.MaxWeight)}
	}
	p := New(balancer.Maglev, members, nil)
	for n := range 100 {
		if i := p.Pick(flowOf(n), nil); i < 0 {
			t.Fatalf("pick for client %d = %d, want a backend", n, i)
		}
	}
	if i := p.Pick(flowOf(0), func(i int) bool { return i != maglevSize+5 }); i != maglevSize+5 {
		t.Errorf("pick = %d, want %d, the only backend that is not skipped", i, maglevSize+5)
	}
}
