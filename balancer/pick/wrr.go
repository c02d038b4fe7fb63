package pick

import (
	"math"
	"net/netip"
	"slices"
	"sync"

	"vipd/balancer"
)

// weighted is smooth weighted round robin. By definition each pick gives every member its weight in credit, takes the
// one with the most credit (the first of equals) and charges it the sum of all weights.
//
// The literal form walks all members at every pick. Here members of one weight share a group: they all gain alike, so
// their order among themselves changes only by what they are charged, and a heap keeps it. A pick compares the heads
// of the groups: O(different weights + log members), the same choices to the letter, and no table to build.
//
// Skipped members take no part: they gain nothing, and the one that is taken pays only the weights of those that do.
// A member is found to be skipped when its turn comes, so while it is full it waits with about a turn's credit; when
// it is free again it does not get all at once what it has missed.
type weighted struct {
	members []member
	total   int64 // sum of all weights

	mu     sync.Mutex
	groups []group
	// places of members in groups, and their own part of their credit: the rest is their group's gain.
	places []int32
	own    []int64
	// out is room for a pick that has to ask about all members.
	out []bool
	// away is the credit of backends that may not be picked now, for when they may again.
	away []share
}

// group is the members of one weight.
type group struct {
	weight int64
	// gain is what every member of the group was given since the start.
	gain int64
	// heap of positions of members, the most credit at the root.
	heap []int32
}

// share is the credit of an address in turns: credit divided by the sum of weights.
type share struct {
	addr  netip.AddrPort
	turns float64
}

func newWeighted(members []member, backends []balancer.Backend, old Picker) *weighted {
	w := &weighted{
		members: members,
		places:  make([]int32, len(members)),
		own:     make([]int64, len(members)),
	}
	byWeight := make(map[int64]int32)
	for i, m := range members {
		w.total += m.weight
		g, ok := byWeight[m.weight]
		if !ok {
			g = int32(len(w.groups))
			byWeight[m.weight] = g
			w.groups = append(w.groups, group{weight: m.weight})
		}
		w.groups[g].heap = append(w.groups[g].heap, int32(i))
		w.places[i] = g
	}
	if o, ok := old.(*weighted); ok {
		w.inherit(o.shares(), backends)
	}
	return w
}

// Pick implements Picker.
func (w *weighted) Pick(_ Flow, skip func(i int) bool) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.headLocked()
	if at < 0 {
		return -1
	}
	if skip != nil && skip(w.members[at].index) {
		return w.pickAmongLocked(skip)
	}
	for i := range w.groups {
		w.groups[i].gain += w.groups[i].weight
	}
	w.own[at] -= w.total
	w.sink(w.groups[w.places[at]].heap, 0)
	return w.members[at].index
}

// headLocked returns the member with the most credit after the next gain, or -1.
func (w *weighted) headLocked() int {
	best, most := -1, int64(0)
	for i := range w.groups {
		g := &w.groups[i]
		at := int(g.heap[0])
		credit := g.gain + g.weight + w.own[at]
		if best < 0 || credit > most || credit == most && at < best {
			best, most = at, credit
		}
	}
	return best
}

// pickAmongLocked picks among those that are not skipped, with a look at every member.
func (w *weighted) pickAmongLocked(skip func(i int) bool) int {
	if w.out == nil {
		w.out = make([]bool, len(w.members))
	}
	best, most, total := -1, int64(0), int64(0)
	for i, m := range w.members {
		if w.out[i] = skip(m.index); w.out[i] {
			continue
		}
		total += m.weight
		if credit := w.groups[w.places[i]].gain + m.weight + w.own[i]; best < 0 || credit > most {
			best, most = i, credit
		}
	}
	if best < 0 {
		return -1
	}
	for i := range w.groups {
		w.groups[i].gain += w.groups[i].weight
	}
	for i, m := range w.members {
		if w.out[i] {
			w.own[i] -= m.weight
		}
	}
	w.own[best] -= total
	w.heapifyLocked()
	return w.members[best].index
}

func (w *weighted) heapifyLocked() {
	for i := range w.groups {
		heap := w.groups[i].heap
		for root := len(heap)/2 - 1; root >= 0; root-- {
			w.sink(heap, root)
		}
	}
}

// sink moves the root of a part of heap down to where it belongs.
func (w *weighted) sink(heap []int32, root int) {
	for {
		top := root
		for child := 2*root + 1; child <= 2*root+2 && child < len(heap); child++ {
			if w.ahead(heap[child], heap[top]) {
				top = child
			}
		}
		if top == root {
			return
		}
		heap[root], heap[top] = heap[top], heap[root]
		root = top
	}
}

// ahead reports whether member a comes before b of the same group.
func (w *weighted) ahead(a, b int32) bool {
	return w.own[a] > w.own[b] || w.own[a] == w.own[b] && a < b
}

// shares returns the credit of each member and of those that are away, sorted by address.
func (w *weighted) shares() []share {
	w.mu.Lock()
	defer w.mu.Unlock()
	shares := make([]share, len(w.members), len(w.members)+len(w.away))
	for i, m := range w.members {
		credit := w.groups[w.places[i]].gain + w.own[i]
		shares[i] = share{m.addr, float64(credit) / float64(w.total)}
	}
	if len(w.away) > 0 {
		shares = append(shares, w.away...)
		slices.SortFunc(shares, func(a, b share) int { return a.addr.Compare(b.addr) })
	}
	return shares
}

// inherit gives addresses the credit they had. It is carried in turns, since a change of weights changes what a turn
// costs, and around the mean of all that are known, so that an address that is new is neither ahead nor behind. Those
// of backends that may not be picked now are put aside: one that fails and recovers all the time would never have
// credit enough if each time it began anew. While there are no members at all, everything is.
func (w *weighted) inherit(past []share, backends []balancer.Backend) {
	if len(w.members) == 0 {
		w.away = past
		return
	}
	known := make([]share, len(backends))
	sum, count := 0.0, 0
	at, ok := 0, false
	for i, b := range backends {
		// Backends mostly come in order, and each is the next of those before.
		if ok = at < len(past) && past[at].addr == b.Addr; !ok {
			at, ok = slices.BinarySearchFunc(past, b.Addr, func(s share, a netip.AddrPort) int { return s.addr.Compare(a) })
		}
		if ok {
			known[i] = past[at]
			sum += past[at].turns
			count++
			at++
		}
	}
	mean := sum / float64(max(count, 1))
	for i, m := range w.members {
		if k := known[m.index]; k.addr.IsValid() {
			w.own[i] = int64(math.Round((k.turns - mean) * float64(w.total)))
		}
	}
	for i, b := range backends {
		if known[i].addr.IsValid() && !usable(b) {
			w.away = append(w.away, share{b.Addr, known[i].turns - mean})
		}
	}
	w.heapifyLocked()
}
