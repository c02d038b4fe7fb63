package pick

import (
	"math"

	"vipd/balancer"
	"vipd/balancer/internal/hash"
)

// rendezvous chooses by rendezvous hashing: each member's number is a hash of the key and of the
// member's address, and the smallest number wins. A member that is removed or skipped does not
// change the order of the others, so only its own keys move. A member whose weight grows only gains
// keys.
//
// The numbers are exponentially distributed with the weight as rate. So the probability that a
// member has the smallest number is proportional to its weight.
type rendezvous struct {
	members []candidate
	seeds   []uint64
	inverse []float64 // 1 / weight
}

func newRendezvous(members []candidate) rendezvous {
	r := rendezvous{members, make([]uint64, len(members)), make([]float64, len(members))}
	for i, m := range members {
		r.seeds[i], r.inverse[i] = hashAddrPort(m.addr), 1/float64(m.weight)
	}
	return r
}

// pick returns the index of the member for key, or -1.
func (r *rendezvous) pick(key uint64, skip func(i int) bool) int {
	best, least := -1, math.Inf(1)
	for i, seed := range r.seeds {
		// u is the fraction (2^53 - gap) / 2^53, which is in (0, 1].
		gap := float64(1<<53 - 1 - hash.Mix(key^seed)>>11)
		// -ln(u) is at least 1-u, so most members lose without a logarithm.
		if gap/(1<<53)*r.inverse[i] >= least {
			continue
		}
		score := -logarithm(1-gap/(1<<53)) * r.inverse[i]
		if score >= least || skip != nil && skip(r.members[i].index) {
			continue
		}
		best, least = r.members[i].index, score
	}
	return best
}

// logarithm returns the natural logarithm of u in (0, 1]. math.Log may differ in the last bit
// between architectures. Here an explicit conversion rounds each product, so the compiler can't
// fuse it with a sum.
func logarithm(u float64) float64 {
	m, exp := math.Frexp(u)
	if m < math.Sqrt2/2 {
		m, exp = 2*m, exp-1
	}
	// ln m = 2 artanh s, as a series in s*s, which is at most 0.03.
	s := (m - 1) / (m + 1)
	q := float64(s * s)
	sum := 0.0
	for k := 21; k >= 1; k -= 2 {
		sum = float64(sum*q) + 1/float64(k)
	}
	return float64(float64(exp)*math.Ln2) + float64(2*s*sum)
}

// sourceHash keeps each client on one backend.
type sourceHash struct{ rendezvous }

// Pick implements Picker.
func (s *sourceHash) Pick(f Flow, skip func(i int) bool) int {
	return s.pick(hashAddr(f.Client.Addr()), skip)
}

// destinationHash keeps each virtual address on one backend.
type destinationHash struct{ rendezvous }

// Pick implements Picker.
func (d *destinationHash) Pick(f Flow, skip func(i int) bool) int {
	return d.pick(hashAddr(f.VIP.Addr()), skip)
}

// Buckets returns the index of the backend for each of n buckets, for modes in which the kernel
// hashes clients into buckets. Only Active backends with a weight get buckets. A bucket's backend
// depends only on its number and the backends. If a backend is added or removed, only its own
// buckets change.
func Buckets(backends []balancer.Backend, n int) []int {
	r := newRendezvous(candidatesOf(backends))
	out := make([]int, n)
	for i := range out {
		out[i] = r.pick(hash.Mix(uint64(i)+1), nil)
	}
	return out
}
