package ipvs

import (
	"context"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
)

// Suspect implements dataplane.Dataplane, for TCP that is forwarded by NAT: of dr and tunnel no answer comes by. It asks
// conntrack, which sees connections to virtual servers too (net.ipv4.vs.conntrack) and lists those without a reply far
// cheaper than IPVS does, whose table has to be read whole.
func (d *Dataplane) Suspect(ctx context.Context, tell func(balancer.Target)) error {
	u, err := conntrack.NewUnanswered(d.targetOf, tell)
	if err != nil {
		return err
	}
	return u.Run(ctx)
}

// targetOf returns the destination that a flow of a virtual server leads to.
func (d *Dataplane) targetOf(flow *conntrack.Flow) (balancer.Target, bool) {
	at := flow.Backend()
	if at == flow.Orig.Dst { // IPVS had no part in it, or did not translate it
		return balancer.Target{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.servers[flow.Frontend()]
	if s == nil || s.last == nil || s.last.Forward != balancer.NATForward {
		return balancer.Target{}, false
	}
	return balancer.Target{Service: s.last.Service, Addr: at.Addr(), Port: at.Port()}, true
}
