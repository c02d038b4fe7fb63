package userspace

import (
	"context"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane"
)

// Connections calls visit for each connection and flow that q selects, without holding a lock. It
// lists one frontend after another, and reports the current state of each connection.
func (d *Dataplane) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	for _, f := range d.list() {
		if !f.concerns(&q) {
			continue
		}
		for _, describe := range f.begun() {
			if err := ctx.Err(); err != nil {
				return err
			}
			c, live := describe()
			if !live || !q.Matches(&c) {
				continue
			}
			if err := visit(&c); err != nil {
				return err
			}
		}
	}
	return d.carried.Connections(ctx, q, visit)
}

func (f *frontend) concerns(q *dataplane.ConnectionQuery) bool {
	k := q.Frontend
	return k == balancer.Key{} || k.Addr == f.key.Addr && k.Proto == f.key.Proto && k.Port.Overlaps(f.key.Port)
}

// begun returns a function for each connection and flow that f has now. The function returns the
// state of the connection or flow, and whether it is still open.
func (f *frontend) begun() []func() (dataplane.Connection, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]func() (dataplane.Connection, bool), 0, f.count+len(f.flows.by))
	for x := f.conns.next; x != &f.conns; x = x.next {
		all = append(all, x.describe)
	}
	f.flows.each(func(x *flow) { all = append(all, func() (dataplane.Connection, bool) { return f.describe(x) }) })
	return all
}

// describe returns the state of a connection. live reports whether the connection is still open.
func (c *conn) describe() (entry dataplane.Connection, live bool) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	return c.describeLocked(), !c.left
}

func (c *conn) describeLocked() dataplane.Connection {
	conf := c.f.conf.Load()
	entry := dataplane.Connection{
		Frontend: keyAt(c.to, c.f.key.Proto), Service: conf.Service, Client: c.from, Since: c.since, State: c.stateLocked(conf),
		In: c.in.Load(), Out: c.out.Load(), Retries: c.retries,
	}
	if c.backend != nil {
		entry.Backend = c.f.target(c.backend.addr, c.to.Port())
	}
	return entry
}

// describe returns the state of a flow. live reports whether the flow is still open.
func (f *frontend) describe(x *flow) (entry dataplane.Connection, live bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.describeLocked(x), !x.ended
}

func (f *frontend) describeLocked(x *flow) dataplane.Connection {
	state := "flow"
	if x.idle(f.d.now()) {
		state = dataplane.Idle
	}
	return dataplane.Connection{
		Frontend: keyAt(netip.AddrPortFrom(f.key.Addr, x.port), f.key.Proto), Service: f.conf.Load().Service, Client: x.client,
		Backend: f.target(x.backend.addr, x.port), Since: x.since, State: state, In: x.in.Load(), Out: x.out.Load(),
	}
}

func (c *conn) stateLocked(conf *config) string {
	if !c.served {
		return "connecting"
	}
	if c.half.Load() {
		return "half-closed"
	}
	is := conf.find(c.backend)
	if c.f.removed || is == nil || is.State == balancer.Draining || is.State == balancer.Removed {
		return "draining"
	}
	return "established"
}
