package userspace

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"vipd/balancer"
	"vipd/dataplane"
)

// tallyKey is what is counted together: all frontends of a service's port.
type tallyKey struct {
	service balancer.Name
	port    string
}

// tally counts for one port of a service. It lives as long as the dataplane, so that counts never go back.
type tally struct {
	connections, in, out atomic.Uint64

	mu       sync.Mutex
	backends map[netip.AddrPort]*backend
}

// backend returns the one at an address, the same each time.
func (t *tally) backend(at netip.AddrPort) *backend {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.backends[at]
	if b == nil {
		b = &backend{addr: at, text: at.String()}
		t.backends[at] = b
	}
	return b
}

// tallyLocked returns the tally of a frontend's service and port.
func (d *Dataplane) tallyLocked(f *balancer.Frontend) *tally {
	k := tallyKey{f.Service, f.Port}
	t := d.tallies[k]
	if t == nil {
		t = &tally{backends: map[netip.AddrPort]*backend{}}
		d.tallies[k] = t
	}
	return t
}

// Counters returns what was counted at every port of a service that was ever served, sorted.
func (d *Dataplane) Counters() []dataplane.FrontendCount {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := make([]dataplane.FrontendCount, 0, len(d.tallies))
	for k, t := range d.tallies {
		c := dataplane.FrontendCount{
			Service: k.service, Port: k.port,
			Connections: t.connections.Load(), In: t.in.Load(), Out: t.out.Load(),
		}
		t.mu.Lock()
		for at, b := range t.backends {
			active := uint64(max(0, b.active.Load()))
			c.Backends = append(c.Backends, dataplane.BackendCount{Backend: at, Connections: b.total.Load(), Active: active})
		}
		t.mu.Unlock()
		slices.SortFunc(c.Backends, func(a, b dataplane.BackendCount) int { return a.Backend.Compare(b.Backend) })
		counts = append(counts, c)
	}
	slices.SortFunc(counts, func(a, b dataplane.FrontendCount) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.Port, b.Port))
	})
	return counts
}
