package userspace

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
)

// errNoBackend means that no backend is active, or that each active backend was already tried or is
// at its connection limit.
var errNoBackend = errors.New("no backend is available")

// chooseLocked chooses a backend that is not in tried for a new connection or flow, and counts it.
// The caller must release the backend. It tries, in this order: the backend that affinity
// remembers, the scheduler's choice among backends that are not at rest, backups, ejected backends,
// the scheduler's choice among all backends, and any ejected backend.
func (f *frontend) chooseLocked(client netip.AddrPort, tried []*backend) (*backend, *config, error) {
	c := f.conf.Load()
	if len(f.memories) == 0 {
		b, err := c.choose(f.d, f.flow(client), tried)
		return b, c, err
	}
	f.memories[0].choosing.Lock()
	defer f.memories[0].choosing.Unlock()
	who, now := c.AffinityClient(client.Addr()), time.Now()
	m := f.memories.of(c.Frontend, who, now)
	endpoint, ok := m.Lookup(who, now)
	if ok {
		if b := c.known(f.d, endpoint, tried); b != nil {
			m.Store(who, endpoint, now)
			return b, c, nil
		}
	}
	b, err := c.choose(f.d, f.flow(client), tried)
	switch {
	case err != nil:
	case ok && c.mayKnow(endpoint, tried): // it rests or is full: this connection uses another backend, but the client's affinity remains
		m.Store(who, endpoint, now)
	default:
		m.Store(who, c.AffinityEndpoint(b.addr), now)
	}
	return b, c, err
}

// mayKnow reports whether a client may stay on the endpoint that affinity remembers. Its backend
// must be active, and must not have been tried for this connection.
func (c *config) mayKnow(endpoint netip.AddrPort, tried []*backend) bool {
	i := c.AffinityBackend(endpoint)
	return i >= 0 && c.Backends[i].State == balancer.Active && !slices.Contains(tried, c.backends[i])
}

func (f *frontend) flow(client netip.AddrPort) pick.Flow {
	return pick.Flow{Client: client, VIP: f.vip}
}

// known returns the backend of a remembered endpoint, and counts a connection to it. It returns nil
// if the backend can't get a new connection now.
func (c *config) known(d *Dataplane, endpoint netip.AddrPort, tried []*backend) *backend {
	if !c.mayKnow(endpoint, tried) {
		return nil
	}
	i := c.AffinityBackend(endpoint)
	b := c.backends[i]
	if !b.take(c.Backends[i].MaxConnections) {
		return nil
	}
	if !b.mayTry(d.now(), c.ConnectTimeout) {
		b.release()
		return nil
	}
	return b
}

// standby chooses a backup if every active backend has failed, either for this connection or
// recently. Without a backup, it chooses an ejected backend. A full backend does not count as
// failed.
func (c *config) standby(now int64, tried []*backend) *backend {
	failed := func(b *backend) bool { return b.inBackoff(now) || slices.Contains(tried, b) }
	for i, b := range c.backends {
		if c.Backends[i].State == balancer.Active && !failed(b) {
			return nil
		}
	}
	if b := c.idlest(balancer.Standby, failed); b != nil {
		return b
	}
	return c.idlest(balancer.Ejected, failed)
}

// idlest chooses the backend with the fewest connections among the backends in a state, and counts
// the connection. It skips full backends and those for which failed returns true, and returns nil
// if none remains.
func (c *config) idlest(state balancer.BackendState, failed func(*backend) bool) *backend {
	var best *backend
	bound := 0
	for i, b := range c.backends {
		if c.Backends[i].State != state || failed(b) {
			continue
		}
		if max := c.Backends[i].MaxConnections; !b.full(max) && (best == nil || b.active.Load() < best.active.Load()) {
			best, bound = b, max
		}
	}
	if best == nil || !best.take(bound) {
		return nil
	}
	return best
}

// choose chooses a backend with the scheduler, or otherwise in the order that chooseLocked
// describes, and counts the connection. If another goroutine has filled the backend since the
// choice, it chooses again.
func (c *config) choose(d *Dataplane, flow pick.Flow, tried []*backend) (*backend, error) {
	now := d.now()
	rest := true
	skip := func(i int) bool {
		b := c.backends[i]
		return b.full(c.Backends[i].MaxConnections) || rest && b.inBackoff(now) || len(tried) > 0 && slices.Contains(tried, b)
	}
	for {
		i := c.picker.Pick(flow, skip)
		if i < 0 && rest {
			if b := c.standby(now, tried); b != nil {
				return b, nil
			}
			rest = false // resting backends may accept connections again
			continue
		}
		if i < 0 {
			if b := c.idlest(balancer.Ejected, func(b *backend) bool { return slices.Contains(tried, b) }); b != nil {
				return b, nil
			}
			return nil, errNoBackend
		}
		b := c.backends[i]
		if !b.take(c.Backends[i].MaxConnections) {
			continue
		}
		if !rest || b.mayTry(now, c.ConnectTimeout) {
			return b, nil
		}
		b.release() // another goroutine has just started to try it, so it rests for all others
	}
}
