package userspace

import (
	"container/heap"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"vipd/dataplane"
)

// flow is the UDP traffic between a client and a frontend. It has its own socket to a backend.
type flow struct {
	client netip.AddrPort
	back   way
	// port is the port to which the client sends.
	port     uint16
	socket   *net.UDPConn
	send     func([]byte) error // sends to the backend; only the read loop of the frontend's socket uses it
	header   []byte             // the PROXY header for datagrams before the first reply
	since    time.Time
	counter  *counter
	in, out  atomic.Uint64
	foreign  bool
	answered atomic.Bool
	// last is the instant of the last datagram in either direction.
	last atomic.Int64

	// The frontend's mu guards the fields below.
	prev, next *flow
	backend    *backend
	placed     int64 // the value of last when the flow got its current position in the ring
	ended      bool
	admission  admission
}

// idle reports whether x counts as idle and no longer as active.
func (x *flow) idle(now int64) bool { return time.Duration(now-x.last.Load()) >= dataplane.IdleAfter }

// flowTable finds flows by client and by age. Its ring holds the flows in the approximate order of
// their last datagrams.
type flowTable struct {
	by   map[flowKey]*flow
	ring flow
}

// flowKey identifies a flow by its client and the port of its socket. See way.port.
type flowKey struct {
	client netip.AddrPort
	port   uint16
}

func (x *flow) key() flowKey { return flowKey{x.client, x.back.port} }

func (t *flowTable) init() {
	t.by = map[flowKey]*flow{}
	t.ring.next, t.ring.prev = &t.ring, &t.ring
}

func (t *flowTable) each(do func(*flow)) {
	for _, x := range t.by {
		do(x)
	}
}

func (t *flowTable) add(x *flow) {
	t.by[x.key()] = x
	t.link(x)
}

func (t *flowTable) link(x *flow) {
	last := t.ring.prev
	x.prev, x.next = last, &t.ring
	last.next, t.ring.prev = x, x
}

func (t *flowTable) unlink(x *flow) { x.prev.next, x.next.prev = x.next, x.prev }

func (t *flowTable) remove(x *flow) {
	delete(t.by, x.key())
	t.unlink(x)
}

// oldest returns the flow that should make room, or nil if there are no flows. A flow's position
// does not change with each datagram. Instead, oldest moves flows with newer datagrams from the
// start of the ring to its end, up to 64 times, and then returns the first flow.
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

// flowBudget limits the total number of flows across all frontends. The frontends with flows form a
// heap, ordered by their number of flows.
type flowBudget struct {
	limit int

	mu      sync.Mutex // guards the fields below and every flowShare; no other lock is acquired while it is held
	used    int
	holders []*frontend
}

// flowShare holds the number of a frontend's flows.
type flowShare struct {
	used int
	at   int // index in holders while used is not 0
}

// newFlowBudget returns a budget of at most half of the descriptors, and half of the system's local
// ports, because each flow needs one. A limit of 0 means the default. If ports is 0, the number of
// local ports is unknown.
func newFlowBudget(limit int, descriptors int64, ports int) *flowBudget {
	if limit <= 0 {
		limit = 1 << 16
	}
	if ports > 0 {
		limit = min(limit, ports/2)
	}
	return &flowBudget{limit: max(1, min(limit, int(descriptors/2)))}
}

// take counts another flow of f. If that would exceed the limit, it counts nothing and returns
// false.
func (b *flowBudget) take(f *frontend) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used >= b.limit {
		return false
	}
	b.used++
	f.flowShare.used++
	if f.flowShare.used == 1 {
		heap.Push(b, f)
	} else {
		heap.Fix(b, f.flowShare.at)
	}
	return true
}

func (b *flowBudget) give(f *frontend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used--
	f.flowShare.used--
	if f.flowShare.used == 0 {
		heap.Remove(b, f.flowShare.at)
	} else {
		heap.Fix(b, f.flowShare.at)
	}
}

// yields returns the frontend that must end a flow to make room for another flow of f. This is the
// frontend with the most flows, or f itself if no other frontend has more than f. It returns nil if
// there are no flows.
func (b *flowBudget) yields(f *frontend) *frontend {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.holders) == 0 {
		return nil
	}
	if most := b.holders[0]; most.flowShare.used > f.flowShare.used {
		return most
	}
	return f
}

// Len, Less, Swap, Push and Pop implement [heap.Interface]. The caller holds mu.
func (b *flowBudget) Len() int { return len(b.holders) }

// Less reports whether holder i has more flows than holder j, so that the frontend with the most
// flows is first.
func (b *flowBudget) Less(i, j int) bool {
	return b.holders[i].flowShare.used > b.holders[j].flowShare.used
}

func (b *flowBudget) Swap(i, j int) {
	b.holders[i], b.holders[j] = b.holders[j], b.holders[i]
	b.holders[i].flowShare.at, b.holders[j].flowShare.at = i, j
}

func (b *flowBudget) Push(x any) {
	f := x.(*frontend)
	f.flowShare.at = len(b.holders)
	b.holders = append(b.holders, f)
}

func (b *flowBudget) Pop() any {
	last := len(b.holders) - 1
	f := b.holders[last]
	b.holders[last] = nil
	b.holders = b.holders[:last]
	return f
}
