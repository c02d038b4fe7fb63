package balancer

// The bounds of one service. Whoever may write one key in etcd must not exhaust the hosts that read it: a text of 50 KiB
// has room for 1,000 ports and 1,000 endpoints, and each endpoint of each port costs memory, kernel objects and checks.
const (
	// MaxFrontends bounds ports times VIPs.
	MaxFrontends = 4096
	// MaxBackends bounds ports times VIPs times endpoints.
	MaxBackends = 250_000
)

// joined are the endpoints of a service on this node.
type joined struct {
	// used count, those that were published apart first.
	used []*Endpoint
	// beyond is how many of those that were published apart are left out because there are too many.
	beyond int
}

// join joins the service's own endpoints with as many of those published apart as are possible beside them.
func join(s *Service, in *Inputs) joined {
	var j joined
	all := EndpointsOf(s, in)
	apart := len(all) - len(s.Endpoints)
	most := MaxBackends / max(1, len(s.Ports)*max(1, len(s.Addresses())))
	kept := min(apart, max(0, most-len(s.Endpoints)))
	j.beyond = apart - kept
	j.used = append(all[:kept:kept], all[apart:]...)
	return j
}

// UsedEndpoints returns those of EndpointsOf that count on this node, which are those to be checked.
func UsedEndpoints(s *Service, in *Inputs) []*Endpoint { return join(s, in).used }

// tooMany reports endpoints that are left out.
func (u *unit) tooMany(j *joined) {
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
	case ports*vips > MaxFrontends:
		r.errorf("ports", "%d ports at %d VIPs are %d frontends; one service may have %d: divide it into several services",
			ports, vips, ports*vips, MaxFrontends)
	case backends > MaxBackends:
		r.errorf("endpoints", "%d endpoints behind %d frontends are %d backends; one service may have %d: divide it into several services",
			len(d.Endpoints), ports*vips, backends, MaxBackends)
	default:
		return true
	}
	return false
}
