package pick

import (
	"math/rand/v2"
	"slices"
)

// weightedRandom draws with probabilities in proportion to the weights of those that are not skipped.
type weightedRandom struct {
	members []member
	// upto are the running sums of the weights.
	upto []int64
	// draw returns a number below its argument; it is safe for concurrent use.
	draw func(n int64) int64
}

// randomTries bounds the draws that hit skipped members before those that are left are looked for one by one.
const randomTries = 4

func newRandom(members []member) *weightedRandom {
	r := &weightedRandom{members: members, upto: make([]int64, len(members)), draw: rand.Int64N}
	sum := int64(0)
	for i, m := range members {
		sum += m.weight
		r.upto[i] = sum
	}
	return r
}

// Pick implements Picker. Drawing again after a skipped member has the same probabilities as drawing among the others
// to begin with.
func (r *weightedRandom) Pick(_ Flow, skip func(i int) bool) int {
	if len(r.members) == 0 {
		return -1
	}
	for range randomTries {
		ticket := r.draw(r.upto[len(r.upto)-1])
		at, _ := slices.BinarySearch(r.upto, ticket+1)
		if i := r.members[at].index; skip == nil || !skip(i) {
			return i
		}
	}
	return r.pickAmong(skip)
}

// pickAmong draws among those that are not skipped in one walk: each takes the place of the one chosen before with the
// probability of its weight among those so far.
func (r *weightedRandom) pickAmong(skip func(i int) bool) int {
	chosen, sum := -1, int64(0)
	for _, m := range r.members {
		if skip(m.index) {
			continue
		}
		sum += m.weight
		if r.draw(sum) < m.weight {
			chosen = m.index
		}
	}
	return chosen
}
