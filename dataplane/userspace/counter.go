package userspace

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
)

// counter holds the counters of a service's port, summed over all its frontends. It is retained for
// [counters.Retention] after the last frontend is removed, like the counts of a removed backend, so
// totals do not decrease if a frontend or backend is removed and restored.
type counter struct {
	connections, in, out, failures atomic.Uint64
	service                        balancer.Name
	seen                           time.Time // when a frontend last used it; guarded by the dataplane's mu

	mu       sync.Mutex
	backends map[netip.AddrPort]*backend
}

// backend returns the backend at an address, and creates it if missing.
func (t *counter) backend(at netip.AddrPort) *backend {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.backends[at]
	if b == nil {
		b = &backend{addr: at, service: t.service, to: newDialAddress(at), seen: time.Now()}
		t.backends[at] = b
	}
	return b
}

func (d *Dataplane) counterLocked(f *balancer.Frontend) *counter {
	k := counters.Port{Service: f.Service, Name: f.Port}
	t := d.counters[k]
	if t == nil {
		t = &counter{service: f.Service, backends: map[netip.AddrPort]*backend{}, seen: time.Now()}
		d.counters[k] = t
	}
	return t
}

// forgetLocked removes counters and backends that no frontend has used for [counters.Retention].
func (d *Dataplane) forgetLocked(now time.Time) {
	for _, f := range d.frontends {
		c := f.conf.Load()
		c.counter.seen = now
		for _, b := range c.backends {
			b.seen = now
		}
	}
	for k, t := range d.counters {
		t.mu.Lock()
		for at, b := range t.backends {
			if b.active.Load() > 0 {
				b.seen = now
			} else if now.Sub(b.seen) > counters.Retention {
				delete(t.backends, at)
			}
		}
		if len(t.backends) == 0 && now.Sub(t.seen) > counters.Retention {
			delete(d.counters, k)
		}
		t.mu.Unlock()
	}
}

// Counters returns the counts of every service port that is served, or was served within
// [counters.Retention].
func (d *Dataplane) Counters() []dataplane.FrontendCount {
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	return append(d.passed(), d.carried.Counters(ctx)...)
}

// countTime limits how long counting another mode's connections, which conntrack forwards, may
// take.
const countTime = 10 * time.Second

// passed returns the counts of the connections that this process relayed.
func (d *Dataplane) passed() []dataplane.FrontendCount {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgetLocked(time.Now())
	idle := d.idleLocked()
	counts := make([]dataplane.FrontendCount, 0, len(d.counters))
	for k, t := range d.counters {
		c := dataplane.FrontendCount{
			Service: k.Service, Port: k.Name,
			Connections: t.connections.Load(), In: t.in.Load(), Out: t.out.Load(), Failures: t.failures.Load(),
		}
		t.mu.Lock()
		for at, b := range t.backends {
			active := uint64(max(0, b.active.Load()-idle[b]))
			c.Backends = append(c.Backends, dataplane.BackendCount{
				Backend: at, Connections: b.total.Load(), Active: active, Failures: b.failures.Load(),
			})
		}
		t.mu.Unlock()
		counts = append(counts, c)
	}
	return counts
}

func (d *Dataplane) idleLocked() map[*backend]int64 {
	idle, now := map[*backend]int64{}, d.now()
	for _, f := range d.frontends {
		f.mu.Lock()
		f.flows.each(func(x *flow) {
			if x.idle(now) {
				idle[x.backend]++
			}
		})
		f.mu.Unlock()
	}
	return idle
}
