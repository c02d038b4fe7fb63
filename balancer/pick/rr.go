package pick

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// cursor is a circular position among members. It survives changes to the members.
type cursor struct {
	members []candidate
	// start is the position of the first choice. before is the last choice among earlier members,
	// or zero; start follows it.
	start  int
	before netip.AddrPort
	// taken is the last chosen position plus 1. Zero means that no member was chosen.
	taken atomic.Int64
}

// init sets the members of c. It starts after the last choice of old, which may be nil.
func (c *cursor) init(members []candidate, old *cursor) {
	c.members = members
	if old == nil {
		return
	}
	c.before = old.last()
	// The zero AddrPort sorts before all others, so a cursor that never moved starts at the first
	// member.
	c.start, _ = slices.BinarySearchFunc(members, c.before, func(m candidate, last netip.AddrPort) int {
		if m.addr.Compare(last) <= 0 {
			return -1
		}
		return 1
	})
}

// last returns the last address that c or an earlier cursor has chosen.
func (c *cursor) last() netip.AddrPort {
	if taken := c.taken.Load(); taken > 0 {
		return c.members[taken-1].addr
	}
	return c.before
}

// from returns the first position to try if taken is the value of c.taken.
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

// roundRobin chooses each member in turn. A skipped member loses its turn to the next member, which
// loses its own turn.
type roundRobin struct{ cursor }

func newRoundRobin(members []candidate, old Picker) *roundRobin {
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

// find returns the first position that is not skipped, or -1. It searches from start on, and wraps
// around.
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
