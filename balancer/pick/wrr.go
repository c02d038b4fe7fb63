package pick

import (
	"math"
	"net/netip"
	"slices"
	"sync"

	"vipd/balancer"
)

// weighted is smooth weighted round robin: each pick gives every member its weight in credit, takes the one with the most
// credit (the first of equals) and charges it the sum of all weights.
//
// Skipped members take no part: they gain nothing, and the one that is taken pays only the weights of those that do.
// A member is found to be skipped when its turn comes, so while it is full it waits with about a turn's credit; when
// it is free again it does not get all at once what it has missed.
type weighted struct {
	members []member

	mu     sync.Mutex
	credit []int64
	// out are the members that were skipped at the latest pick.
	out []bool
	// away is the credit of backends that may not be picked now, for when they may again.
	away []share
}

// share is the credit of an address in turns: credit divided by the sum of weights.
type share struct {
	addr  netip.AddrPort
	turns float64
}

func newWeighted(members []member, backends []balancer.Backend, old Picker) *weighted {
	w := &weighted{members: members, credit: make([]int64, len(members)), out: make([]bool, len(members))}
	if o, ok := old.(*weighted); ok {
		w.inherit(o.shares(), backends)
	}
	return w
}

// Pick implements Picker.
func (w *weighted) Pick(_ Flow, skip func(i int) bool) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.out)
	at := w.mostLocked()
	if at >= 0 && skip != nil && skip(w.members[at].index) {
		for i, m := range w.members {
			w.out[i] = i == at || skip(m.index)
		}
		at = w.mostLocked()
	}
	if at < 0 {
		return -1
	}
	for i, m := range w.members {
		if !w.out[i] {
			w.credit[i] += m.weight
			w.credit[at] -= m.weight
		}
	}
	return w.members[at].index
}

// mostLocked returns the member with the most credit after the next gain, among those that are not out, or -1.
func (w *weighted) mostLocked() int {
	best, most := -1, int64(0)
	for i, m := range w.members {
		if credit := w.credit[i] + m.weight; !w.out[i] && (best < 0 || credit > most) {
			best, most = i, credit
		}
	}
	return best
}

// shares returns the credit of each member and of those that are away, sorted by address.
func (w *weighted) shares() []share {
	w.mu.Lock()
	defer w.mu.Unlock()
	total := float64(totalOf(w.members))
	shares := make([]share, len(w.members), len(w.members)+len(w.away))
	for i, m := range w.members {
		shares[i] = share{m.addr, float64(w.credit[i]) / total}
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
	mean, total := sum/float64(max(count, 1)), float64(totalOf(w.members))
	for i, m := range w.members {
		if k := known[m.index]; k.addr.IsValid() {
			w.credit[i] = int64(math.Round((k.turns - mean) * total))
		}
	}
	for i, b := range backends {
		if known[i].addr.IsValid() && !usable(b) {
			w.away = append(w.away, share{b.Addr, known[i].turns - mean})
		}
	}
}

// totalOf is the sum of all weights.
func totalOf(members []member) (total int64) {
	for _, m := range members {
		total += m.weight
	}
	return total
}
