package pick

import "vipd/balancer"

// leastLoaded chooses the member with the lowest cost for its scheduler, from its load c and weight
// w:
//
//	lc   c
//	wlc  c / w
//	sed  (c + 1) / w
//	nq   0 if c is 0, else (c + 1) / w
//
// Members of equal cost rotate: the search starts after the last choice.
type leastLoaded struct {
	cursor
	load func(i int) int64
	// more is added to each load. If unweighted is set, every weight counts as 1. If idle is set,
	// the first idle member is chosen.
	more             int64
	unweighted, idle bool
}

func newLeast(s balancer.Scheduler, members []candidate, load func(i int) int64, old Picker) *leastLoaded {
	l := &leastLoaded{load: load}
	switch s {
	case balancer.LeastConn:
		l.unweighted = true
	case balancer.ShortestDelay:
		l.more = 1
	case balancer.NeverQueue:
		l.more, l.idle = 1, true
	}
	var from *cursor
	if o, ok := old.(*leastLoaded); ok {
		from = &o.cursor
	}
	l.init(members, from)
	return l
}

// Pick implements Picker.
func (l *leastLoaded) Pick(_ Flow, skip func(i int) bool) int {
	best := -1
	bestCost := int64(0)
	bestWeight := int64(1)
	start := l.from(l.taken.Load())
	for n := range l.members {
		at := start + n
		if at >= len(l.members) {
			at -= len(l.members)
		}
		m := &l.members[at]
		c, weight := max(l.load(m.index), 0), m.weight
		if l.unweighted {
			weight = 1
		}
		idle := l.idle && c == 0
		c += l.more
		// Fractions are compared by cross-multiplication, in integers.
		if best >= 0 && !idle && c*bestWeight >= bestCost*weight {
			continue
		}
		if skip != nil && skip(m.index) {
			continue
		}
		best = at
		bestCost = c
		bestWeight = weight
		if idle {
			break
		}
	}
	if best < 0 {
		return -1
	}
	l.taken.Store(int64(best) + 1)
	return l.members[best].index
}
