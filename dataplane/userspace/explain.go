package userspace

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/dataplane"
)

// Explain implements [dataplane.Explains]. It reads the affinity tables and schedulers that also
// choose backends for connections.
func (d *Dataplane) Explain(_ context.Context, g *balancer.Frontend, client netip.AddrPort) (dataplane.Explanation, error) {
	d.mu.Lock()
	f := d.frontends[g.Key]
	d.mu.Unlock()
	if f == nil {
		return dataplane.Explanation{}, fmt.Errorf("userspace mode does not serve %s", g.Key)
	}
	e := dataplane.Explanation{Choice: choiceOf(g.Scheduler), Objects: f.sockets()}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, now := f.conf.Load(), time.Now()
	if len(f.memories) > 0 {
		who := c.AffinityClient(client.Addr())
		m := f.memories.of(c.Frontend, who, now)
		if endpoint, ok := m.Lookup(who, now); ok && c.mayKnow(endpoint, nil) {
			e.Sticky, e.Left = c.Backends[c.AffinityBackend(endpoint)].Addr, m.Left(who, now)
		}
	}
	load := func(i int) int64 { return c.backends[i].active.Load() }
	full := func(i int) bool { return c.backends[i].full(c.Backends[i].MaxConnections) }
	for i, part := range pick.Shares(c.Scheduler, c.Backends, load, f.flow(netip.AddrPortFrom(client.Addr(), 0)), full) {
		if part > 0 {
			e.Shares = append(e.Shares, dataplane.Share{Backend: c.Backends[i].Addr, Part: part})
		}
	}
	return e, nil
}

func choiceOf(s balancer.Scheduler) string {
	switch s {
	case balancer.RoundRobin:
		return "in turn"
	case balancer.Random:
		return "at random, by weight"
	case balancer.LeastConn, balancer.WeightedLeastConn, balancer.ShortestDelay, balancer.NeverQueue:
		return "by this node's current connections"
	case balancer.SourceHash, balancer.Maglev:
		return "by a hash of the client's address"
	case balancer.DestinationHash:
		return "by a hash of the VIP"
	}
	return "in turn, by weight"
}

// sockets describes the socket at which connections to f arrive, with the number of f's connections
// and flows.
func (f *frontend) sockets() (all []dataplane.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.ports) > 0 {
		says, others := "", ""
		if n := len(f.ports) - 1; n > 0 {
			others = fmt.Sprintf(" and %d more ports", n)
		}
		switch p := f.ports[0]; {
		case p.listener != nil:
			says = "listens on " + p.listener.Addr().String()
		case p.packets != nil:
			says = "receives on " + p.packets.LocalAddr().String()
		case p.held != nil:
			says = "keeps the port closed"
		}
		if says != "" {
			all = append(all, dataplane.Object{Name: "vipd's socket", Says: says + others})
		}
	}
	return append(all, dataplane.Object{Name: "connections", Says: fmt.Sprintf("%d, and %d UDP flows", f.count, len(f.flows.by))})
}
