package balancer

import "net/netip"

// The bounds of one service. A user who may write one key in etcd must not exhaust the hosts that read it: a text of 50 KiB
// has room for 1,000 ports and 1,000 endpoints, and each endpoint of each port costs memory, kernel objects and checks.
const (
	// maxFrontends bounds ports times VIPs.
	maxFrontends = 4096
	// MaxBackends bounds ports times VIPs times endpoints.
	MaxBackends = 250_000
)

// joined are the endpoints of a service on this node.
type joined struct {
	// used count, those that were published apart first.
	used []*Endpoint
	// untrusted are left out because of their addresses.
	untrusted []*Endpoint
	// beyond is how many of those that were published apart are left out because there are too many.
	beyond int
}

// join joins the service's own endpoints with as many of those published apart as are possible beside them, as far as a
// node takes them whose addresses.allowed is this.
func join(allowed []netip.Prefix, s *Service, in *Inputs) joined {
	all := EndpointsOf(s, in)
	apart := len(all) - len(s.Endpoints)
	room := MaxBackends/max(1, len(s.Ports)*len(s.Addresses())) - len(s.Endpoints)
	j := joined{used: make([]*Endpoint, 0, len(all))}
	here := onlyHere(allowed, s)
	for i, e := range all {
		switch {
		case (i < apart || fromEtcd(s)) && !trusted(allowed, e.Address, here):
			j.untrusted = append(j.untrusted, e)
		case i < apart && len(j.used) >= room:
			j.beyond++
		default:
			j.used = append(j.used, e)
		}
	}
	return j
}

// UsedEndpoints returns those of EndpointsOf that count on a node whose addresses.allowed is this; they are those to be
// checked as well.
func UsedEndpoints(allowed []netip.Prefix, s *Service, in *Inputs) []*Endpoint {
	return join(allowed, s, in).used
}

// leftOut reports the endpoints that do not count.
func (u *unit) leftOut(j *joined) {
	u.each(j.untrusted, "address", func(*Endpoint) bool { return true }, func(field, whose string) {
		u.refuse(Refused, field, "endpoints from etcd with loopback or link-local addresses are not used%s: clients from anywhere would reach what listens for programs of this node only. If that is meant, have the service in the node's own file, or name their network in addresses.allowed of its configuration",
			whose)
	})
	if j.beyond > 0 {
		s := u.service
		u.problem(SeverityError, "endpoints", "%d endpoints behind %d frontends are too many: %d, registered last by key, are not used, because one service may have %d backends in all. Divide it into several services",
			len(j.used)+j.beyond, len(s.Ports)*len(s.Addresses()), j.beyond, MaxBackends)
	}
}

// checkSize notes a service that is too large to be looked at, and reports whether it is not.
func (r *reading) checkSize(d *definition) bool {
	ports, vips := len(d.Ports), max(1, len(d.VIPs))
	switch backends := ports * vips * len(d.Endpoints); {
	case ports*vips > maxFrontends:
		r.errorf("ports", "%d ports at %d VIPs are %d frontends; one service may have %d: divide it into several services",
			ports, vips, ports*vips, maxFrontends)
	case backends > MaxBackends:
		r.errorf("endpoints", "%d endpoints behind %d frontends are %d backends; one service may have %d: divide it into several services",
			len(d.Endpoints), ports*vips, backends, MaxBackends)
	default:
		return true
	}
	return false
}
