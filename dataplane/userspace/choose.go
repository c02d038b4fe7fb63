package userspace

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
)

// errNoBackend: every backend was tried, is at its bound, or none is active.
var errNoBackend = errors.New("no backend is left")

// chooseLocked picks the backend of a new connection or flow, none of those in tried, and counts it there: the caller that gets
// one releases it. The affinity comes first, then the scheduler among backends that do not rest, then the backups, then
// those that are ejected, then the scheduler among all, then any that is ejected.
func (f *frontend) chooseLocked(client netip.AddrPort, tried []*backend) (*backend, *config, error) {
	c := f.conf.Load()
	if f.sticky == nil {
		b, err := c.choose(f.d, f.flow(client), tried)
		return b, c, err
	}
	now := time.Now()
	at, ok := f.sticky.Lookup(client.Addr(), now)
	if ok {
		if b := c.known(f.d, at, tried); b != nil {
			f.sticky.Store(client.Addr(), at, now)
			return b, c, nil
		}
	}
	b, err := c.choose(f.d, f.flow(client), tried)
	switch {
	case err != nil:
	case ok && c.mayKnow(at, tried): // it rests or is full: this connection goes elsewhere, and the client comes back
		f.sticky.Store(client.Addr(), at, now)
	default:
		f.sticky.Store(client.Addr(), b.addr, now)
	}
	return b, c, err
}

// mayKnow reports whether clients may stay with the backend at an address: it is active, and not one that this client
// itself has just tried in vain.
func (c *config) mayKnow(at netip.AddrPort, tried []*backend) bool {
	i := c.index(at)
	return i >= 0 && c.Backends[i].State == balancer.Active &&
		!slices.ContainsFunc(tried, func(b *backend) bool { return b.addr == at })
}

func (f *frontend) flow(client netip.AddrPort) pick.Flow {
	return pick.Flow{Client: client, VIP: f.vip}
}

// known takes the backend at an address, if it can have a new connection now.
func (c *config) known(d *Dataplane, at netip.AddrPort, tried []*backend) *backend {
	if !c.mayKnow(at, tried) {
		return nil
	}
	i := c.index(at)
	b := c.backends[i]
	if !b.take(c.Backends[i].MaxConnections) {
		return nil
	}
	if !b.awake(d.now(), c.ConnectTimeout) {
		b.release()
		return nil
	}
	return b
}

// standby takes a backup, else one that is ejected, when every active backend has failed: this connection, or another a
// moment ago. One that is merely full has not.
func (c *config) standby(now int64, tried []*backend) *backend {
	failed := func(b *backend) bool { return b.resting(now) || slices.Contains(tried, b) }
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

// idlest takes the backend in a state that has the fewest connections; nil means all have failed, or are full.
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

// choose asks the scheduler. It goes round again when the backend was taken by others meanwhile.
func (c *config) choose(d *Dataplane, flow pick.Flow, tried []*backend) (*backend, error) {
	now := d.now()
	rest := true
	skip := func(i int) bool {
		b := c.backends[i]
		return b.full(c.Backends[i].MaxConnections) || rest && b.resting(now) || len(tried) > 0 && slices.Contains(tried, b)
	}
	for {
		i := c.picker.Pick(flow, skip)
		if i < 0 && rest {
			if b := c.standby(now, tried); b != nil {
				return b, nil
			}
			rest = false // better one that may answer again than none
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
		if !rest || b.awake(now, c.ConnectTimeout) {
			return b, nil
		}
		b.release() // another goroutine has just begun to try it: it rests again
	}
}
