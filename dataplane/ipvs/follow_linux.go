package ipvs

import (
	"context"

	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
)

var _ dataplane.FollowsConnections = (*Dataplane)(nil)

// Follow implements [dataplane.FollowsConnections] with conntrack's events about flows to vipd's
// virtual servers.
func (d *Dataplane) Follow(ctx context.Context, tell func(began bool, c *dataplane.Connection), lost func(ends uint64)) error {
	return conntrack.Follow(ctx, func(began bool, flow *conntrack.Flow) {
		k := flow.Frontend()
		d.mu.Lock()
		s := d.servers[k]
		ours := s != nil && s.exists && s.last != nil && flow.Backend() != k.AddrPort() // a flow whose endpoint is the VIP itself was accepted by a socket of userspace mode
		c := dataplane.Connection{Frontend: k, Client: flow.Client(), Backend: flow.Backend(), State: flow.State, Since: flow.Start, In: flow.In, Out: flow.Out}
		if ours {
			c.Service = s.last.Service
		}
		d.mu.Unlock()
		if ours {
			tell(began, &c)
		}
	}, func() { lost(1) })
}
