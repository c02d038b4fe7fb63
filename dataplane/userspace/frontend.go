package userspace

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
)

// frontend is the state of a frontend key while the key has a definition or connections.
type frontend struct {
	d   *Dataplane
	key balancer.Key
	// vip is the VIP and the first port.
	vip  netip.AddrPort
	conf atomic.Pointer[config] // only written while mu is held
	// descriptors is the number of file descriptors that the frontend's connections use.
	descriptors atomic.Int64

	mu sync.Mutex // guards the fields below
	// ports holds the sockets. A bound frontend has an entry for each port, and a redirected
	// frontend at most one.
	ports []*portSockets
	// bound reports whether the sockets listen at VIP:port, as in the bind interception.
	bound bool
	// conns is the head of the connection ring.
	conns conn
	count int
	flows flowTable
	// flowShare is the frontend's share of the flow budget, and guarded by the budget's mu.
	flowShare flowShare
	memories  memories
	// admitter counts connections for the client limits. It is nil if there are no limits.
	admitter *admitter
	// removed reports whether the frontend's definition was removed. Its connections are reset at
	// drainUntil.
	removed    bool
	drainUntil time.Time
	// ended reports whether the dataplane is closing and no longer waits for connections.
	ended bool
	// handing reports whether reading is paused for a handover.
	handing bool
	// nextLost is the next time when a backend loses its connections, or zero if there is none.
	nextLost time.Time
	// idleChecked is the instant of the last check for idle connections or flows.
	idleChecked int64
}

// config is an immutable version of a frontend's definition. Only its counters change.
type config struct {
	*balancer.Frontend
	serves   bool
	backends []*backend // parallel to Frontend.Backends
	picker   pick.Picker
	counter  *counter
}

func newFrontend(d *Dataplane, key balancer.Key) *frontend {
	f := &frontend{d: d, key: key, vip: key.AddrPort()}
	f.conns.next, f.conns.prev = &f.conns, &f.conns
	f.flows.init()
	if !key.Port.IsRange() {
		f.ports = []*portSockets{{f: f, at: f.vip}}
	}
	return f
}

func (f *frontend) configure(g *balancer.Frontend, t *counter) {
	next := &config{Frontend: g, serves: g.Serves(), counter: t, backends: make([]*backend, len(g.Backends))}
	for i, b := range g.Backends {
		next.backends[i] = t.backend(b.Addr)
	}
	load := func(i int) int64 { return next.backends[i].active.Load() }
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.conf.Load()
	if old == nil {
		next.picker = pick.New(g.Scheduler, g.Backends, load)
	} else {
		next.picker = pick.Next(old.picker, g.Scheduler, g.Backends, load)
	}
	f.memories = f.d.remembering.share(f, g)
	f.admitter = f.d.admitters.share(f, g)
	f.removed = false
	f.conf.Store(next)
	f.closeNarrowerLocked(next)
	f.cutLostLocked(time.Now())
	if old != nil && old.counter != t {
		f.adoptLocked(next)
	}
	if old != nil && (old.IdleTimeout != next.IdleTimeout || old.MaxConnectionAge != next.MaxConnectionAge) {
		for x := f.conns.next; x != &f.conns; x = x.next {
			x.retimeLocked()
		}
	}
}

// forgetClients makes the frontend stop using its affinity memories and its admitter.
func (f *frontend) forgetClients() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.memories = f.d.remembering.share(f, nil)
	f.admitter = f.d.admitters.share(f, nil)
}

// adoptLocked moves the counts of open connections and flows to the backends of a renamed service,
// so connection limits and the scheduler still include them.
func (f *frontend) adoptLocked(c *config) {
	for x := f.conns.next; x != &f.conns; x = x.next {
		if x.served {
			x.backend = c.adopt(x.backend)
		}
	}
	f.flows.each(func(x *flow) { x.backend = c.adopt(x.backend) })
}

// adopt moves a connection from b's count to the count of c's backend with the same address, and
// returns that backend. If there is none, it returns b.
func (c *config) adopt(b *backend) *backend {
	i := c.index(b.addr)
	if i < 0 || c.backends[i] == b {
		return b
	}
	c.backends[i].active.Add(1)
	b.release()
	return c.backends[i]
}

// timed reports whether the janitor must check the frontend because its state may change over time.
func (f *frontend) timed() bool {
	c := f.conf.Load()
	return f.removed || f.key.Proto == balancer.UDP ||
		slices.ContainsFunc(c.Backends, func(b balancer.Backend) bool { return !b.Until.IsZero() })
}

// closed reports whether the port should refuse clients because no backend is active.
func (c *config) closed() bool { return !c.serves && c.NoEndpoints != balancer.DropClients }

// find returns the backend's definition, or nil if the frontend no longer has a backend with this
// address.
func (c *config) find(b *backend) *balancer.Backend {
	if i := c.index(b.addr); i >= 0 {
		return &c.Backends[i]
	}
	return nil
}

// index returns the index of the backend at an address, or -1.
func (c *config) index(at netip.AddrPort) int {
	i, ok := slices.BinarySearchFunc(c.Backends, at, func(x balancer.Backend, a netip.AddrPort) int { return x.Addr.Compare(a) })
	if !ok {
		return -1
	}
	return i
}

// keeps reports whether connections to b may continue at the time now.
func (c *config) keeps(b *backend, now time.Time) bool {
	current := c.find(b)
	return current != nil && !current.Expired(now)
}

// nextUntil returns the next instant at which a backend loses its connections, or zero if there is
// none. The result has a monotonic clock reading, so setting the system clock does not end a drain.
func (c *config) nextUntil(now time.Time) time.Time {
	var next time.Time
	for i := range c.Backends {
		if u := c.Backends[i].Until; u.After(now) && (next.IsZero() || u.Before(next)) {
			next = u
		}
	}
	if !next.IsZero() {
		next = now.Add(next.Sub(now))
	}
	return next
}

// cutLostLocked ends the connections and flows whose backend was removed or has passed its
// deadline.
func (f *frontend) cutLostLocked(now time.Time) {
	c := f.conf.Load()
	f.nextLost = c.nextUntil(now)
	for x := f.conns.next; x != &f.conns; x = x.next {
		if x.backend != nil && !c.keeps(x.backend, now) {
			if x.served {
				x.cutLocked()
			} else {
				x.interruptLocked() // it continues with another backend
			}
		}
	}
	f.flows.each(func(x *flow) {
		if is := c.find(x.backend); is == nil || is.State == balancer.Removed || !c.keeps(x.backend, now) {
			f.endFlowLocked(x)
		}
	})
}

// end resets all connections, and makes the frontend refuse new connections. It returns the number
// of connections.
func (f *frontend) end() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for x := f.conns.next; x != &f.conns; x = x.next {
		x.cutLocked()
	}
	return f.count
}

// remove removes the definition. The frontend then accepts no connections, its flows end, and its
// connections continue until drainUntil. remove reports whether no connection is left.
func (f *frontend) remove(now time.Time) bool {
	f.shut()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.removed {
		f.removed = true
		f.drainUntil = now.Add(f.conf.Load().DrainTimeout)
	}
	return f.count == 0
}

// allows reports whether a client may connect. Without source ranges, every client may. The node
// itself always may, unless connections need PROXY headers.
func (c *config) allows(d *Dataplane, client netip.Addr) bool {
	return c.Allows(client) || c.isExempt(d, client)
}

func (c *config) isOwn(d *Dataplane, client netip.Addr) bool {
	return client.IsLoopback() || client == c.Addr || d.own.has(client)
}

// admits reports whether a client may connect. If the answer depends on the node's own addresses
// and these must be read again, sure is false.
func (c *config) admits(d *Dataplane, client netip.Addr) (may, sure bool) {
	allowed := c.Allows(client)
	if c.AcceptProxyProtocol {
		if sure = c.Source != balancer.ClientSource; !sure {
			_, sure = d.own.peek(client)
		}
		return allowed, sure
	}
	if allowed && c.Limits.IsZero() && c.Source != balancer.ClientSource || client.IsLoopback() || client == c.Addr {
		return true, true
	}
	own, sure := d.own.peek(client)
	return allowed || own, sure
}
