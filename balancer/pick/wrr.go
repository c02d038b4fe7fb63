package pick

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"sync"

	"vipd/balancer"
)

// weighted is smooth weighted round robin: each pick gives every member its weight in credit, takes the one with the most
// credit (the first of equals) and charges it the sum of all weights.
//
// Members of one weight gain alike, so their order among themselves changes only by what they pay: the one that was taken
// mostly goes to the end. A pick compares the first of each weight.
//
// Skipped members take no part: they gain nothing, and the one that is taken pays only the weights of those that do.
// A member is found to be skipped when its turn comes, so while it is full it waits with about a turn's credit; when
// it is free again it does not get all at once what it has missed.
type weighted struct {
	members []member
	total   int64 // sum of all weights

	mu     sync.Mutex
	groups []group
	// own is each member's credit without the gain of its group.
	own []int64
	// out are the members that were skipped at the latest pick that skipped some.
	out []bool
	// away is the credit of backends that may not be picked now, for when they may again.
	away []share
}

// group is the members of one weight.
type group struct {
	weight int64
	// gain is what each of them was given since the start.
	gain int64
	// ring has their places in members: the most credit at head, and less from there on, around the end.
	ring []int
	head int
}

// share is the credit of an address in turns: credit divided by the sum of weights.
type share struct {
	addr  netip.AddrPort
	turns float64
}

func newWeighted(members []member, backends []balancer.Backend, old Picker) *weighted {
	w := &weighted{members: members, own: make([]int64, len(members)), out: make([]bool, len(members))}
	byWeight := map[int64]int{} // the place in groups
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
	first, at, most := (*group)(nil), -1, int64(0)
	for j := range w.groups {
		g := &w.groups[j]
		i := g.ring[g.head]
		if credit := g.gain + g.weight + w.own[i]; at < 0 || credit > most || credit == most && i < at {
			first, at, most = g, i, credit
		}
	}
	switch {
	case at < 0:
		return -1
	case skip != nil && skip(w.members[at].index):
		return w.pickAmongLocked(at, skip)
	}
	w.gainLocked()
	w.own[at] -= w.total
	w.passLocked(first)
	return w.members[at].index
}

// gainLocked gives every member its weight.
func (w *weighted) gainLocked() {
	for i := range w.groups {
		w.groups[i].gain += w.groups[i].weight
	}
}

// passLocked brings the head of a group, which has paid, to where it belongs: at the end, or before those with less.
func (w *weighted) passLocked(g *group) {
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

// compare orders members of a group: the most credit first, and the first of equals.
func (w *weighted) compare(a, b int) int {
	return cmp.Or(cmp.Compare(w.own[b], w.own[a]), cmp.Compare(a, b))
}

// pickAmongLocked picks among those that are not skipped, with a look at every member; skipped is known to be.
func (w *weighted) pickAmongLocked(skipped int, skip func(i int) bool) int {
	best, most, total := -1, int64(0), int64(0)
	for _, g := range w.groups {
		for _, i := range g.ring {
			if w.out[i] = i == skipped || skip(w.members[i].index); w.out[i] {
				continue
			}
			total += g.weight
			if credit := g.gain + g.weight + w.own[i]; best < 0 || credit > most || credit == most && i < best {
				best, most = i, credit
			}
		}
	}
	if best < 0 {
		return -1
	}
	w.gainLocked()
	for i, m := range w.members {
		if w.out[i] {
			w.own[i] -= m.weight
		}
	}
	w.own[best] -= total
	w.sortLocked()
	return w.members[best].index
}

// sortLocked puts the members of each group in order.
func (w *weighted) sortLocked() {
	for i := range w.groups {
		w.groups[i].head = 0
		slices.SortFunc(w.groups[i].ring, w.compare)
	}
}

// shares returns the credit of each member and of those that are away, sorted by address.
func (w *weighted) shares() []share {
	w.mu.Lock()
	defer w.mu.Unlock()
	shares := make([]share, len(w.members), len(w.members)+len(w.away))
	for _, g := range w.groups {
		for _, i := range g.ring {
			shares[i] = share{w.members[i].addr, float64(g.gain+w.own[i]) / float64(w.total)}
		}
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
	w.sortLocked()
	for i, b := range backends {
		if known[i].addr.IsValid() && !usable(b) {
			w.away = append(w.away, share{b.Addr, known[i].turns - mean})
		}
	}
}
