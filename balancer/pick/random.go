package pick

import (
	"math/rand/v2"
	"slices"
)

// weightedRandom draws a member at random, and never a skipped member. The probability of each
// member is proportional to its weight.
type weightedRandom struct {
	members []candidate
	// sums are the cumulative sums of the weights.
	sums []int64
	// draw returns a random number below its argument. It is safe for concurrent use.
	draw func(n int64) int64
}

// randomTries is the maximum number of draws before all members are visited.
const randomTries = 4

func newRandom(members []candidate) *weightedRandom {
	r := &weightedRandom{members: members, sums: make([]int64, len(members)), draw: rand.Int64N}
	sum := int64(0)
	for i, m := range members {
		sum += m.weight
		r.sums[i] = sum
	}
	return r
}

// Pick implements Picker. Drawing again after a skipped member gives the same probabilities as
// drawing among the other members.
func (r *weightedRandom) Pick(_ Flow, skip func(i int) bool) int {
	if len(r.members) == 0 {
		return -1
	}
	for range randomTries {
		ticket := r.draw(r.sums[len(r.sums)-1])
		at, _ := slices.BinarySearch(r.sums, ticket+1)
		if i := r.members[at].index; skip == nil || !skip(i) {
			return i
		}
	}
	return r.pickAmong(skip)
}

// pickAmong draws among the members that are not skipped, in one pass (reservoir sampling). Each
// member becomes the choice with a probability of its weight divided by the sum of the weights so
// far.
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
