package iptables

import (
	"context"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
)

var _ dataplane.Suspecter = (*Dataplane)(nil)

// Suspect implements dataplane.Suspecter, for TCP.
func (d *Dataplane) Suspect(ctx context.Context, tell func(balancer.Target)) error {
	u, err := conntrack.NewUnanswered(d.flows.targetOf, tell)
	if err != nil {
		return err
	}
	return u.Run(ctx)
}

// targetOf returns the backend that a flow of a frontend leads to.
func (fl *flows) targetOf(flow *conntrack.Flow) (balancer.Target, bool) {
	if !flow.Status.Has(conntrack.DstNAT) {
		return balancer.Target{}, false
	}
	fl.mu.Lock()
	f := fl.wanted[flow.Frontend()]
	fl.mu.Unlock()
	if f == nil {
		return balancer.Target{}, false
	}
	at := flow.Backend()
	return balancer.Target{Service: f.Service, Addr: at.Addr(), Port: at.Port()}, true
}
