package userspace

import (
	"context"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
)

// Observe returns the frontends that this process serves: what an earlier one served ended with it. In the redirect
// interception it looks at the rules too, and what an earlier process left of them is damage.
func (d *Dataplane) Observe(ctx context.Context) (dataplane.Observation, error) {
	d.applying.Lock()
	defer d.applying.Unlock()
	frontends := d.list()
	seen := dataplane.Observation{Digests: make(map[balancer.Key]dataplane.Digest, len(frontends))}
	for _, f := range frontends {
		switch {
		case f.isRemoved():
		case d.tables.served(f):
			seen.Digests[f.key] = d.Digest(f.conf.Load().Frontend)
		default:
			seen.Digests[f.key] = 0
		}
	}
	damage, err := d.tables.inspect(ctx)
	seen.Damage = damage
	return seen, err
}

// Intact reports what is missing. Sockets don't go away by themselves: it is about the rules of the redirect
// interception.
func (d *Dataplane) Intact(ctx context.Context) (string, error) { return d.tables.intact(ctx) }

// Connections lists all connections and flows.
func (d *Dataplane) Connections(context.Context) ([]dataplane.Connection, error) {
	var list []dataplane.Connection
	for _, f := range d.list() {
		list = f.list(list)
	}
	return list, nil
}

// list returns all frontends, in any order.
func (d *Dataplane) list() []*frontend {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.frontends))
}

// list appends what goes through f.
func (f *frontend) list(list []dataplane.Connection) []dataplane.Connection {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conf.Load()
	for x := f.conns.next; x != &f.conns; x = x.next {
		entry := dataplane.Connection{
			Frontend: f.key, Service: c.Service, Client: x.from, Since: x.since, State: x.stateLocked(c),
			In: x.traffic.in.Load(), Out: x.traffic.out.Load(),
		}
		if x.backend != nil {
			entry.Backend = x.backend.addr
		}
		list = append(list, entry)
	}
	f.flows.each(func(x *flow) {
		state := "flow"
		if x.idle(f.d.now()) {
			state = dataplane.Idle
		}
		list = append(list, dataplane.Connection{
			Frontend: f.key, Service: c.Service, Client: x.client, Backend: x.backend.addr, Since: x.since, State: state,
			In: x.in.Load(), Out: x.out.Load(),
		})
	})
	return list
}

// stateLocked is the word for where a connection stands.
func (c *conn) stateLocked(conf *config) string {
	if c.server == nil {
		return "connecting"
	}
	if c.traffic.half.Load() {
		return "half-closed"
	}
	is := conf.find(c.backend)
	if c.f.removed || is == nil || is.State == balancer.Draining || is.State == balancer.Removed {
		return "draining"
	}
	return "established"
}

func (f *frontend) isRemoved() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.removed
}
