package balancer

import (
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer/snap"
)

// endpointsAtVIPs returns a warning for each endpoint at a VIP of its own service or of another
// service with frontends. A host that holds a VIP can't reach another host at the same address. An
// endpoint at one of the node's own addresses gets no warning, because it runs on this node.
func (u *compiledService) endpointsAtVIPs(env *Env, frontends snap.Map[Key, *Frontend]) []Problem {
	all := compiledService{service: u.service}
	for _, e := range u.endpoints {
		owner := vipOwner(u.service, e.Address, frontends)
		if owner == "" || e.Address.IsLoopback() || slices.Contains(env.Local, e.Address) {
			continue
		}
		field := "endpoints" // for an endpoint that was registered separately
		for i := range u.service.Endpoints {
			if e == &u.service.Endpoints[i] {
				field = element("endpoints", i, "address")
			}
		}
		loops := func(p Problem) bool { return p.Field == field && p.Severity == SeverityError }
		if !slices.ContainsFunc(u.problems, loops) {
			all.problem(SeverityWarning, field, "%s is also a VIP of %s: a host that holds the VIP connects to itself instead of the endpoint. Choose another VIP",
				e.Address, owner)
		}
	}
	return all.problems
}

// vipOwner describes the service with the VIP a for messages: s itself, or the service of the first
// frontend at a. It returns "" if a is not a VIP.
func vipOwner(s *Service, a netip.Addr, frontends snap.Map[Key, *Frontend]) string {
	if slices.Contains(s.Addresses(), a) {
		return "the service"
	}
	for _, f := range frontends.While(Key{Addr: a}, func(k Key) bool { return k.Addr == a }) {
		if !f.NodePort {
			return fmt.Sprintf("service %s", f.Service)
		}
	}
	return ""
}
