package userspace

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
)

// frontend is one key for as long as it has a definition or connections.
type frontend struct {
	d    *Dataplane
	key  balancer.Key
	vip  netip.AddrPort
	conf atomic.Pointer[config] // written under mu
	// descriptors are those of its connections.
	descriptors atomic.Int64

	mu sync.Mutex // guards what follows
	// listener and packets are the sockets at VIP:port, in the bind interception; nil means not listening.
	listener *net.TCPListener
	packets  *net.UDPConn
	// bound: these are at VIP:port, by the bind interception, and held keeps the port while there are none.
	bound bool
	held  *heldPort
	// conns are the connections, a ring through its own head.
	conns conn
	count int
	// flows are those of UDP.
	flows flowTable
	// flowShare is their part of what all frontends may have; that budget's mu guards it.
	flowShare flowShare
	// sticky is there once affinity was asked for.
	sticky *pick.Sticky
	// removed: no definition any more; what is left ends at drainUntil.
	removed    bool
	drainUntil time.Time
	// ended: the dataplane is closing, and waits no longer.
	ended bool
	// handing: connections are paused, to be handed over.
	handing bool
	// nextLost is when a backend next loses its connections; zero means at no known time.
	nextLost time.Time
	// idleChecked is when the janitor last looked for idle connections.
	idleChecked int64
}

// config is one generation of a frontend: immutable, but for what its parts count.
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
	return f
}

// configure makes g the definition. Connections of backends that it does not have any more are cut, and so are UDP
// flows of removed ones.
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
	switch {
	case g.AffinityTimeout <= 0:
		f.sticky = nil
	case f.sticky == nil:
		f.sticky = pick.NewSticky(g.AffinityTimeout, 0)
	case old.AffinityTimeout != g.AffinityTimeout:
		f.sticky.SetTimeout(g.AffinityTimeout)
	}
	f.removed = false
	f.conf.Store(next)
	f.cutLostLocked(time.Now())
	if old != nil && old.counter != t {
		f.adoptLocked(next)
	}
}

// adoptLocked has connections and flows count at the backends of a service that has got another name, so that bounds
// and the scheduler go on to see them.
func (f *frontend) adoptLocked(c *config) {
	for x := f.conns.next; x != &f.conns; x = x.next {
		if x.server != nil {
			x.backend = c.adopt(x.backend)
		}
	}
	f.flows.each(func(x *flow) { x.backend = c.adopt(x.backend) })
}

// adopt moves one connection's count to the backend of the same address.
func (c *config) adopt(b *backend) *backend {
	i := c.index(b.addr)
	if i < 0 || c.backends[i] == b {
		return b
	}
	c.backends[i].active.Add(1)
	b.release()
	return c.backends[i]
}

// timed reports whether time alone can change something here.
func (f *frontend) timed() bool {
	c := f.conf.Load()
	return f.removed || f.key.Proto == balancer.UDP || c.IdleTimeout > 0 ||
		slices.ContainsFunc(c.Backends, func(b balancer.Backend) bool { return !b.Until.IsZero() })
}

// closed reports whether clients are to find a closed port.
func (c *config) closed() bool { return !c.serves && c.NoEndpoints != balancer.DropClients }

// find returns the definition of the backend, or nil when the frontend does not have its address any more. Where the
// service has got another name it is another backend by now, at the same address.
func (c *config) find(b *backend) *balancer.Backend {
	if i := c.index(b.addr); i >= 0 {
		return &c.Backends[i]
	}
	return nil
}

// index returns where the backend at an address is; -1 means nowhere.
func (c *config) index(at netip.AddrPort) int {
	i, ok := slices.BinarySearchFunc(c.Backends, at, func(x balancer.Backend, a netip.AddrPort) int { return x.Addr.Compare(a) })
	if !ok {
		return -1
	}
	return i
}

// keeps reports whether connections to b may live on.
func (c *config) keeps(b *backend, now time.Time) bool {
	is := c.find(b)
	return is != nil && !is.Expired(now)
}

// nextUntil returns the next instant at which a backend loses its connections, by the monotonic clock: who sets the other one ends no
// drain. Zero means there is none.
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

// cutLostLocked ends the connections and flows whose backends don't have them any more.
func (f *frontend) cutLostLocked(now time.Time) {
	c := f.conf.Load()
	f.nextLost = c.nextUntil(now)
	for x := f.conns.next; x != &f.conns; x = x.next {
		if x.backend != nil && !c.keeps(x.backend, now) {
			if x.server == nil {
				x.attempt.abandon() // it goes on to another backend
			} else {
				x.cutLocked()
			}
		}
	}
	f.flows.each(func(x *flow) {
		if is := c.find(x.backend); is == nil || is.State == balancer.Removed || !c.keeps(x.backend, now) {
			f.endFlowLocked(x)
		}
	})
}

// end resets all connections, lets none in any more, and returns how many there were.
func (f *frontend) end() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for x := f.conns.next; x != &f.conns; x = x.next {
		x.cutLocked()
	}
	return f.count
}

// remove takes the definition away: nothing is accepted any more, flows end, and connections have until the drain's
// end. It reports whether nothing is left.
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

// allows reports whether a client may connect: all may where there are no source ranges; the node itself always may.
func (c *config) allows(d *Dataplane, client netip.Addr) bool {
	return c.Allows(client) || client.IsLoopback() || client == c.Addr || d.own.has(client)
}
