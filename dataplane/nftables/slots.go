package nftables

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/pick"
)

const (
	// mostSlots, and slotsEach for each backend, bound the slots of a frontend whose weights have no large common measure.
	mostSlots, slotsEach = 1024, 8
	// mostError is by which part a backend's share may then miss its weight.
	mostError = 0.01
	// leastBuckets, bucketsEach and mostBuckets are the size of the tables of frontends that choose by the client's address:
	// a power of two, so that most clients keep their place when it grows.
	leastBuckets, bucketsEach, mostBuckets = 256, 8, 8192
)

// active lists the backends that get new connections.
func active(f *balancer.Frontend) []balancer.Backend {
	return slices.DeleteFunc(slices.Clone(f.Backends), func(b balancer.Backend) bool { return b.State != balancer.Active })
}

// weighted gives each backend as many slots as its weight, divided by the common measure of all weights. Where these are
// more than may be, it takes the smallest number of slots at which no share misses its weight by more than mostError, and
// all that may be at most; each backend has a slot at least.
func weighted(backends []balancer.Backend) []netip.AddrPort {
	common, sum := 0, 0
	for _, b := range backends {
		common, sum = gcd(common, b.Weight), sum+b.Weight
	}
	counts := make([]int, len(backends))
	for i, b := range backends {
		counts[i] = b.Weight / common
	}
	if most := max(mostSlots, slotsEach*len(backends)); sum/common > most {
		counts = approximate(backends, sum, most)
	}
	var slots []netip.AddrPort
	for i, n := range counts {
		slots = append(slots, slices.Repeat([]netip.AddrPort{backends[i].Addr}, n)...)
	}
	return slots
}

// approximate tries more and more slots.
func approximate(backends []balancer.Backend, sum, most int) []int {
	for n := len(backends); ; n = min(most, n+n/8+1) {
		counts, worst := divide(backends, sum, n)
		if worst <= mostError || n == most {
			return counts
		}
	}
}

// divide gives n slots to backends by the largest remainders, and says by which part the worst share misses its weight.
func divide(backends []balancer.Backend, sum, n int) (counts []int, worst float64) {
	counts = make([]int, len(backends))
	rest := make([]float64, len(backends))
	order := make([]int, len(backends))
	left := n
	for i, b := range backends {
		exact := float64(b.Weight) * float64(n) / float64(sum)
		counts[i], order[i] = max(1, int(exact)), i
		rest[i] = exact - float64(counts[i])
		left -= counts[i]
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(rest[j], rest[i]) })
	for i := 0; left > 0; i, left = i+1, left-1 {
		counts[order[i%len(order)]]++
	}
	total := 0
	for _, c := range counts {
		total += c
	}
	for i, b := range backends {
		want := float64(b.Weight) / float64(sum)
		worst = max(worst, math.Abs(float64(counts[i])/float64(total)-want)/want)
	}
	return counts, worst
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// hashed is the table of backends by the hash of the client's address. It depends on the backends alone, so that every host
// sends a client to the same one.
func hashed(backends []balancer.Backend) []netip.AddrPort {
	n := leastBuckets
	for n < mostBuckets && n < bucketsEach*len(backends) {
		n *= 2
	}
	slots := make([]netip.AddrPort, n)
	for i, at := range pick.Buckets(backends, n) {
		slots[i] = backends[at].Addr
	}
	return slots
}

// arrange puts the wanted slots into an order that differs as little as possible from what is there, unless their order is
// fixed. The zero value stands for a slot that is missing.
func arrange[V comparable](there, want []V, fixed bool) []V {
	if fixed {
		return want
	}
	var none V
	need := map[V]int{}
	for _, v := range want {
		need[v]++
	}
	out := make([]V, len(want))
	for i := range min(len(there), len(want)) {
		if need[there[i]] > 0 {
			out[i] = there[i]
			need[there[i]]--
		}
	}
	i := 0
	for _, v := range want {
		if need[v] == 0 {
			continue
		}
		need[v]--
		for out[i] != none {
			i++
		}
		out[i] = v
	}
	return out
}
