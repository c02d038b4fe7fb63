package pick

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// cursor is a position among members that goes round and survives changes of them.
type cursor struct {
	members []member
	// start is the position to begin at while nothing was taken, and before the address it follows: the one that was
	// taken last of earlier members.
	start  int
	before netip.AddrPort
	// taken is the position that was taken last plus 1; 0 means none yet.
	taken atomic.Int64
}

// init sets the members of c, and begins after what was taken last from old, which may be nil.
func (c *cursor) init(members []member, old *cursor) {
	c.members = members
	if old == nil {
		return
	}
	c.before = old.last()
	// Addresses without one compare below all others, so that a cursor which never moved begins at the first member.
	c.start, _ = slices.BinarySearchFunc(members, c.before, func(m member, last netip.AddrPort) int {
		if m.addr.Compare(last) <= 0 {
			return -1
		}
		return 1
	})
}

// last returns the address that was taken last, by c or by those it took over from.
func (c *cursor) last() netip.AddrPort {
	if taken := c.taken.Load(); taken > 0 {
		return c.members[taken-1].addr
	}
	return c.before
}

// from returns the position to begin at when taken is what was read of c.taken.
func (c *cursor) from(taken int64) int {
	at := int(taken)
	if at == 0 {
		at = c.start
	}
	if at >= len(c.members) {
		return 0
	}
	return at
}

// roundRobin takes each member in turn. Who is skipped loses that turn to the next, who is not asked twice for it:
// the position moves past the one that was taken.
type roundRobin struct{ cursor }

func newRoundRobin(members []member, old Picker) *roundRobin {
	r := &roundRobin{}
	var from *cursor
	if o, ok := old.(*roundRobin); ok {
		from = &o.cursor
	}
	r.init(members, from)
	return r
}

// Pick implements Picker.
func (r *roundRobin) Pick(_ Flow, skip func(i int) bool) int {
	for {
		taken := r.taken.Load()
		at := r.find(r.from(taken), skip)
		if at < 0 {
			return -1
		}
		if r.taken.CompareAndSwap(taken, int64(at)+1) {
			return r.members[at].index
		}
	}
}

// find returns the first position from start on, going round, that is not skipped, or -1.
func (r *roundRobin) find(start int, skip func(i int) bool) int {
	for n := range r.members {
		at := start + n
		if at >= len(r.members) {
			at -= len(r.members)
		}
		if skip == nil || !skip(r.members[at].index) {
			return at
		}
	}
	return -1
}
