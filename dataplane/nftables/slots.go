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
	// A frontend whose weights have no large common divisor has at most maxSlots slots, or
	// slotsEach slots for each backend if that is more.
	maxSlots, slotsEach = 1024, 8
	// maxShareError is the maximum relative deviation of a backend's share from its weight, if the
	// maximum number of slots permits it.
	maxShareError = 0.01
	// These limit the size of the slot table of a frontend that chooses by the client's address.
	// All sizes are powers of two, so most clients keep their backend when the table grows.
	minBuckets, bucketsEach, maxBuckets = 256, 8, 8192
)

// active returns the backends that get new connections.
func active(f *balancer.Frontend) []balancer.Backend {
	return slices.DeleteFunc(slices.Clone(f.Backends), func(b balancer.Backend) bool { return b.State != balancer.Active })
}

// weighted returns a slot table in which each backend's number of slots is its weight divided by
// the greatest common divisor of all weights. If the table would be too large, it uses fewer slots,
// such that no share deviates by more than maxShareError. If that is impossible, it uses the
// maximum number of slots. Each backend has at least one slot.
func weighted(backends []balancer.Backend) []netip.AddrPort {
	common, sum := 0, 0
	for _, b := range backends {
		common, sum = gcd(common, b.Weight), sum+b.Weight
	}
	counts := make([]int, len(backends))
	for i, b := range backends {
		counts[i] = b.Weight / common
	}
	if most := max(maxSlots, slotsEach*len(backends)); sum/common > most {
		counts = approximate(backends, sum, most)
	}
	var slots []netip.AddrPort
	for i, n := range counts {
		slots = append(slots, slices.Repeat([]netip.AddrPort{backends[i].Addr}, n)...)
	}
	return slots
}

// approximate returns each backend's number of slots. It tries increasing totals until the shares
// are accurate enough or the limit is reached.
func approximate(backends []balancer.Backend, sum, limit int) []int {
	for n := len(backends); ; n = min(limit, n+n/8+1) {
		counts, worst := divide(backends, sum, n)
		if worst <= maxShareError || n == limit {
			return counts
		}
	}
}

// divide distributes n slots to backends by the largest-remainder method. It returns each backend's
// number of slots, and the largest relative deviation of a share from its weight.
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

// hashed returns the slot table for a scheduler that hashes the client's address. The table depends
// only on the backends, so all hosts send a client to the same backend.
func hashed(backends []balancer.Backend) []netip.AddrPort {
	n := minBuckets
	for n < maxBuckets && n < bucketsEach*len(backends) {
		n *= 2
	}
	slots := make([]netip.AddrPort, n)
	for i, at := range pick.Buckets(backends, n) {
		slots[i] = backends[at].Addr
	}
	return slots
}

// arrange orders the wanted slots in want so that as many as possible equal the current slots. If
// fixed is set, it keeps their order. The zero value in current represents a missing slot.
func arrange[V comparable](current, want []V, fixed bool) []V {
	if fixed {
		return want
	}
	var none V
	need := map[V]int{}
	for _, v := range want {
		need[v]++
	}
	out := make([]V, len(want))
	for i := range min(len(current), len(want)) {
		if need[current[i]] > 0 {
			out[i] = current[i]
			need[current[i]]--
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
