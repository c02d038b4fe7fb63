package balancer

import (
	"fmt"
	"slices"
	"strings"
)

// These limits apply to each service. A user with access to a single key in etcd must not exhaust
// the hosts that read it. A definition of only 50 KiB can have 1,000 ports and 1,000 endpoints, and
// each endpoint at each port costs memory, kernel objects and checks.
const (
	// maxFrontends limits the number of ports times the number of VIPs.
	maxFrontends = 4096
	// MaxBackends limits the number of ports times the number of VIPs times the number of
	// endpoints.
	MaxBackends = 250_000
)

// joinedEndpoints holds the endpoints of a service: defined, registered and discovered endpoints.
type joinedEndpoints struct {
	// used lists the endpoints that this node uses. Registered endpoints are first.
	used []*Endpoint
	// refused are the endpoints that this node does not use, by reason.
	refused map[endpointRefusal][]*Endpoint
	// excess is the number of registered and resolved endpoints beyond MaxBackends.
	excess int
}

// joinEndpoints joins a service's defined, registered and discovered endpoints, up to MaxBackends.
// It omits endpoints that this node refuses.
func joinEndpoints(env *Env, s *Service, in *Inputs) joinedEndpoints {
	all, registered := listEndpoints(s, in)
	room := MaxBackends/max(1, len(s.Ports)*len(s.Addresses())) - len(s.Endpoints)
	extra := 0 // used endpoints from outside the definition
	j := joinedEndpoints{used: make([]*Endpoint, 0, len(all))}
	hostOnly := servesHostOnly(env.Allowed, s)
	for i, e := range all {
		var why endpointRefusal
		switch {
		case env.refusesAnswer(e):
			why = privateAnswer
		case i < registered || fromEtcd(s):
			why = env.refusesEndpoint(s, e, hostOnly)
		}
		added := i < registered || e.From != Lookup{}
		switch {
		case why != "":
			if j.refused == nil {
				j.refused = map[endpointRefusal][]*Endpoint{}
			}
			j.refused[why] = append(j.refused[why], e)
		case added && extra >= room:
			j.excess++
		default:
			if added {
				extra++
			}
			j.used = append(j.used, e)
		}
	}
	return j
}

// UsedEndpoints returns the endpoints of a service that this node uses, and therefore checks.
func UsedEndpoints(env *Env, s *Service, in *Inputs) []*Endpoint {
	return joinEndpoints(env, s, in).used
}

func (u *compiledService) reportUnused(j *joinedEndpoints) {
	for _, why := range []endpointRefusal{privateAnswer, privateAddress, metadataAddress, ownAddress, nodePort, etcdPort, etcdCheck} {
		all := j.refused[why]
		u.reportEach(all, "address", func(*Endpoint) bool { return true }, func(field, whose string) {
			u.refuse(Refused, field, "%s", why.text(whose, all))
		})
	}
	if j.excess > 0 {
		s := u.service
		u.problem(SeverityError, "endpoints", "%d endpoints behind %d frontends exceed the limit of %d backends: the last %d by key are not used. Split the service",
			len(j.used)+j.excess, len(s.Ports)*len(s.Addresses()), MaxBackends, j.excess)
	}
}

// text explains why endpoints are not used, and which setting allows them. The parameter whose
// describes endpoints that have no field in the definition.
func (r endpointRefusal) text(whose string, endpoints []*Endpoint) string {
	if r == privateAnswer {
		return fmt.Sprintf("loopback and link-local addresses in answers are not used%s: clients would reach local programs. If intended, write the address itself, or add its network to addresses.allowed_endpoints", whose)
	}
	if r == privateAddress {
		return fmt.Sprintf("endpoints from etcd with loopback or link-local addresses are not used%s: clients would reach local programs. If intended, add their network to addresses.allowed", whose)
	}
	const shown = 5
	var networks []string
	for _, e := range endpoints {
		if network := fmt.Sprintf("%q", hostPrefix(e.Address)); len(networks) < shown && !slices.Contains(networks, network) {
			networks = append(networks, network)
		}
	}
	remedy := fmt.Sprintf("To use them, add allowed_endpoints = [%s] to [addresses] in the host's configuration", strings.Join(networks, ", "))
	switch r {
	case metadataAddress:
		return fmt.Sprintf("endpoints from etcd at a cloud's metadata address are not used%s: that address might expose this host's credentials. %s; a larger network is not enough", whose, remedy)
	case ownAddress:
		return fmt.Sprintf("endpoints from etcd are not used on the host that has their address%s: clients would bypass the host's firewall. %s", whose, remedy)
	case etcdCheck:
		return fmt.Sprintf("endpoints from etcd are not used if health.port or health_port is one of etcd's ports at their address%s. Remove that setting, or define the service in the host's own file", whose)
	case nodePort:
		return fmt.Sprintf("endpoints from etcd on ports below %d of other nodes (target_port, health.port or health_port) are not used%s, because the node might trust only this host there. %s", firstNodePort, whose, remedy)
	}
	return fmt.Sprintf("endpoints from etcd on etcd's ports are not used%s: clients would get this host's access to etcd. %s; a larger network is not enough", whose, remedy)
}

// checkSize reports an error and returns false if the service exceeds maxFrontends or MaxBackends.
func (r *tableReader) checkSize(d *serviceTable) bool {
	ports, vips := len(d.Ports), max(1, len(d.VIPs))
	switch backends := ports * vips * len(d.Endpoints); {
	case ports*vips > maxFrontends:
		r.errorf("ports", "%d ports at %d VIPs make %d frontends; the limit is %d: split the service",
			ports, vips, ports*vips, maxFrontends)
	case backends > MaxBackends:
		r.errorf("endpoints", "%d endpoints behind %d frontends make %d backends; the limit is %d: split the service",
			len(d.Endpoints), ports*vips, backends, MaxBackends)
	default:
		return true
	}
	return false
}
