package dnat

import (
	"vipd/balancer"
	"vipd/dataplane"
)

// Digest implements the Digest method of [dataplane.Dataplane] on behalf of modes that translate
// addresses. It covers all fields of f that affect rules, and the fields that [Tracker] uses, but
// not the guard's settings.
func Digest(f *balancer.Frontend) dataplane.Digest {
	g := &balancer.Frontend{
		Key: f.Key, Service: f.Service, Port: f.Port, Policy: balancer.Policy{Scheduler: f.Scheduler}, AffinityTimeout: f.AffinityTimeout, Withdrawn: f.Withdrawn,
		AffinityScope: f.AffinityScope, AffinityPrefix: f.AffinityPrefix, Foreign: f.Foreign, Open: f.Open,
		Backends: make([]balancer.Backend, len(f.Backends)),
	}
	for i, b := range f.Backends {
		g.Backends[i] = balancer.Backend{Addr: b.Addr, Weight: b.Weight, Until: b.Until}
		if b.State == balancer.Active {
			g.Backends[i].State = b.State
		}
	}
	if f.Forward.Direct() { // the mode itself restricts clients, and lets endpoints drain
		g.Forward, g.Sources, g.DrainTimeout = f.Forward, f.Sources, f.DrainTimeout
		for i, b := range f.Backends {
			g.Backends[i].State, g.Backends[i].Failing = b.State, b.Failing
		}
	}
	return dataplane.DigestOf(g)
}
