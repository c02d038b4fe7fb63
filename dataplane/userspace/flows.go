package userspace

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// flow is one UDP client at one frontend, with a socket of its own to its backend.
type flow struct {
	client  netip.AddrPort
	back    way
	socket  *net.UDPConn
	since   time.Time
	tally   *tally
	in, out atomic.Uint64
	// last is the instant of the last datagram, either way.
	last atomic.Int64

	// The rest is guarded by the frontend's mu.
	prev, next *flow
	backend    *backend
	placed     int64 // what last was when it was put in its place in the ring
	ended      bool
}

// flowTable finds flows by client, and knows their age: the ring is in the order of
// their last datagrams, as far as anyone has looked.
type flowTable struct {
	by   map[netip.AddrPort]*flow
	ring flow
}

func (t *flowTable) init() {
	t.by = map[netip.AddrPort]*flow{}
	t.ring.next, t.ring.prev = &t.ring, &t.ring
}

func (t *flowTable) each(do func(*flow)) {
	for _, x := range t.by {
		do(x)
	}
}

func (t *flowTable) add(x *flow) {
	t.by[x.client] = x
	t.link(x)
}

func (t *flowTable) link(x *flow) {
	last := t.ring.prev
	x.prev, x.next = last, &t.ring
	last.next, t.ring.prev = x, x
}

func (t *flowTable) unlink(x *flow) { x.prev.next, x.next.prev = x.next, x.prev }

func (t *flowTable) remove(x *flow) {
	delete(t.by, x.client)
	t.unlink(x)
}

// oldest returns the flow that is to make room, or nil. Flows are not moved at each datagram: one that turns out to have
// had some since it was put in its place goes to the end now. After a few of those the next one will do.
func (t *flowTable) oldest() *flow {
	if len(t.by) == 0 {
		return nil
	}
	for range 64 {
		x := t.ring.next
		last := x.last.Load()
		if last == x.placed {
			return x
		}
		x.placed = last
		t.unlink(x)
		t.link(x)
	}
	return t.ring.next
}

// flowBudget bounds the flows of all frontends.
type flowBudget struct {
	limit int64
	used  atomic.Int64
}

func newFlowBudget(limit int, descriptors int64) *flowBudget {
	if limit <= 0 {
		limit = 1 << 16
	}
	return &flowBudget{limit: max(1, min(int64(limit), descriptors/2))}
}

func (b *flowBudget) take() bool {
	if b.used.Add(1) > b.limit {
		b.used.Add(-1)
		return false
	}
	return true
}

func (b *flowBudget) give() { b.used.Add(-1) }
