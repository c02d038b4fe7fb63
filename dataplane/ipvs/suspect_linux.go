package ipvs

import (
	"context"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
)

var _ dataplane.WatchesUnanswered = (*Dataplane)(nil)

// WatchUnanswered implements [dataplane.WatchesUnanswered] for connections that are forwarded by
// NAT, because replies to dr and tunnel connections bypass this node. It uses conntrack, which also
// tracks connections to virtual servers (net.ipv4.vs.conntrack). Listing conntrack's unanswered
// connections is much faster than reading the whole IPVS table.
func (d *Dataplane) WatchUnanswered(ctx context.Context, refusals bool, tell func(dataplane.FailedConnect)) error {
	u, err := conntrack.NewUnanswered(refusals, d.targetOf, func(s conntrack.Suspect) {
		if f := d.frontendOf(s.Flow); f != nil && s.Counted {
			d.unanswered.Add(counters.BackendKey{Port: counters.Port{Service: f.Service, Name: f.Port}, Addr: destinationOf(f.Key, s.Flow.Backend())})
		}
		tell(dataplane.FailedConnect{Target: s.Target, Client: s.Flow.Client().Addr(), Counted: s.Counted})
	})
	if err != nil {
		return err
	}
	return u.Run(ctx)
}

// targetOf returns the endpoint of a flow that a virtual server translates. It returns false for
// other flows.
func (d *Dataplane) targetOf(flow *conntrack.Flow) (balancer.Target, bool) {
	f := d.frontendOf(flow)
	if f == nil {
		return balancer.Target{}, false
	}
	at := destinationOf(f.Key, flow.Backend())
	return balancer.Target{Service: f.Service, Addr: at.Addr(), Port: at.Port()}, true
}

// frontendOf returns the frontend of a flow that a virtual server translates, or nil.
func (d *Dataplane) frontendOf(flow *conntrack.Flow) *balancer.Frontend {
	if flow.Backend() == flow.Orig.Dst { // IPVS did not handle or translate it
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at := flow.Frontend()
	s := d.servers[at]
	if s == nil { // the narrowest port range
		for k, t := range d.ranges {
			if k.Covers(at) && (s == nil || k.Port.Len() < s.key.Port.Len()) {
				s = t
			}
		}
	}
	if s == nil || s.last == nil || s.last.Forward != balancer.NATForward {
		return nil
	}
	return s.last
}
