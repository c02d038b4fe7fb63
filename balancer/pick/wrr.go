package pick

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"sync"

	"vipd/balancer"
)

// weighted is smooth weighted round robin. Each pick adds every member's weight to its credit, and
// chooses the first member with the highest credit. That member pays the sum of all weights.
//
// Members with the same weight gain equal amounts, so only payments change their order: a chosen
// member usually moves to the end. A pick compares the first member of each weight.
//
// Skipped members do not take part: they gain nothing, and the chosen member pays only the sum of
// the other weights. A pick notices that a member is skipped only when it is the member's turn, so
// a full member keeps about one turn's credit. When it is no longer full, it does not get all
// missed turns in a row.
type weighted struct {
	members []candidate
	total   int64 // sum of all weights

	mu     sync.Mutex
	groups []group
	// credits is each member's credit without the gain of its group.
	credits []int64
	// skipped marks the members that the latest pick with skipped members has skipped.
	skipped []bool
	// absent holds the credit of unusable backends until they are usable again.
	absent []share
}

// group holds the members with the same weight.
type group struct {
	weight int64
	// gain is the credit that each member has received since the start.
	gain int64
	// ring holds their indexes in members. It is circular, and sorted by falling credit from head
	// on.
	ring []int
	head int
}

// share is the credit of an address, measured in turns. A turn is the sum of all weights.
type share struct {
	addr  netip.AddrPort
	turns float64
}

func newWeighted(members []candidate, backends []balancer.Backend, old Picker) *weighted {
	w := &weighted{members: members, credits: make([]int64, len(members)), skipped: make([]bool, len(members))}
	byWeight := map[int64]int{} // indexes in groups
	for i, m := range members {
		w.total += m.weight
		g, ok := byWeight[m.weight]
		if !ok {
			g = len(w.groups)
			byWeight[m.weight] = g
			w.groups = append(w.groups, group{weight: m.weight})
		}
		w.groups[g].ring = append(w.groups[g].ring, i)
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
	first := (*group)(nil)
	at := -1
	highest := int64(0)
	for j := range w.groups {
		g := &w.groups[j]
		i := g.ring[g.head]
		if credit := g.gain + g.weight + w.credits[i]; at < 0 || credit > highest || credit == highest && i < at {
			first = g
			at = i
			highest = credit
		}
	}
	switch {
	case at < 0:
		return -1
	case skip != nil && skip(w.members[at].index):
		return w.pickAmongLocked(at, skip)
	}
	w.gainLocked()
	w.credits[at] -= w.total
	w.requeueLocked(first)
	return w.members[at].index
}

func (w *weighted) gainLocked() {
	for i := range w.groups {
		w.groups[i].gain += w.groups[i].weight
	}
}

// requeueLocked moves the head of a group to its new position by credit, after the head was picked
// and has paid.
func (w *weighted) requeueLocked(g *group) {
	at, n := g.head, len(g.ring)
	for g.head = (g.head + 1) % n; at != g.head; {
		before := (at + n - 1) % n
		if w.compare(g.ring[before], g.ring[at]) < 0 {
			break
		}
		g.ring[before], g.ring[at] = g.ring[at], g.ring[before]
		at = before
	}
}

// compare orders members of a group by falling credit, then by index.
func (w *weighted) compare(a, b int) int {
	return cmp.Or(cmp.Compare(w.credits[b], w.credits[a]), cmp.Compare(a, b))
}

// pickAmongLocked picks among the members that are not skipped. It visits every member. The caller
// already knows that skip returns true for the member with the index skipped.
func (w *weighted) pickAmongLocked(skipped int, skip func(i int) bool) int {
	best := -1
	highest := int64(0)
	total := int64(0)
	for _, g := range w.groups {
		for _, i := range g.ring {
			if w.skipped[i] = i == skipped || skip(w.members[i].index); w.skipped[i] {
				continue
			}
			total += g.weight
			if credit := g.gain + g.weight + w.credits[i]; best < 0 || credit > highest || credit == highest && i < best {
				best, highest = i, credit
			}
		}
	}
	if best < 0 {
		return -1
	}
	w.gainLocked()
	for i, m := range w.members {
		if w.skipped[i] {
			w.credits[i] -= m.weight
		}
	}
	w.credits[best] -= total
	w.sortLocked()
	return w.members[best].index
}

func (w *weighted) sortLocked() {
	for i := range w.groups {
		w.groups[i].head = 0
		slices.SortFunc(w.groups[i].ring, w.compare)
	}
}

func (w *weighted) shares() []share {
	w.mu.Lock()
	defer w.mu.Unlock()
	shares := make([]share, len(w.members), len(w.members)+len(w.absent))
	for _, g := range w.groups {
		for _, i := range g.ring {
			shares[i] = share{w.members[i].addr, float64(g.gain+w.credits[i]) / float64(w.total)}
		}
	}
	if len(w.absent) > 0 {
		shares = append(shares, w.absent...)
		slices.SortFunc(shares, func(a, b share) int { return a.addr.Compare(b.addr) })
	}
	return shares
}

// inherit carries over the credit that addresses had before. Credit is carried over in turns,
// because a change to weights changes the cost of a turn. It is relative to the mean of all known
// addresses, so a new address is neither ahead nor behind. The credit of unusable backends is kept
// in absent. Otherwise, a backend that repeatedly fails and recovers would start from zero each
// time, and never get enough credit. If there are no members, all credit is kept.
func (w *weighted) inherit(past []share, backends []balancer.Backend) {
	if len(w.members) == 0 {
		w.absent = past
		return
	}
	known := make([]share, len(backends))
	sum, count := 0.0, 0
	at, ok := 0, false
	for i, b := range backends {
		// Backends are usually sorted, so the share of each is the next in past.
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
			w.credits[i] = int64(math.Round((k.turns - mean) * float64(w.total)))
		}
	}
	w.sortLocked()
	for i, b := range backends {
		if known[i].addr.IsValid() && !usable(b) {
			w.absent = append(w.absent, share{b.Addr, known[i].turns - mean})
		}
	}
}
