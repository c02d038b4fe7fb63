package balancer

import (
	"fmt"
	"slices"
	"strings"
)

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
	// refused are left out because of where they lead.
	refused map[refusal][]*Endpoint
	// beyond is how many of those that were published apart are left out because there are too many.
	beyond int
}

// join joins the service's own endpoints with as many of those published apart as are possible beside them, as far as
// this node uses them.
func join(env *Env, s *Service, in *Inputs) joined {
	all := EndpointsOf(s, in)
	apart := len(all) - len(s.Endpoints)
	room := MaxBackends/max(1, len(s.Ports)*len(s.Addresses())) - len(s.Endpoints)
	j := joined{used: make([]*Endpoint, 0, len(all))}
	here := onlyHere(env.Allowed, s)
	for i, e := range all {
		var why refusal
		if i < apart || fromEtcd(s) {
			why = env.refusesEndpoint(s, e, here)
		}
		switch {
		case why != "":
			if j.refused == nil {
				j.refused = map[refusal][]*Endpoint{}
			}
			j.refused[why] = append(j.refused[why], e)
		case i < apart && len(j.used) >= room:
			j.beyond++
		default:
			j.used = append(j.used, e)
		}
	}
	return j
}

// UsedEndpoints returns those of EndpointsOf that count on this node; they are those to be
// checked as well.
func UsedEndpoints(env *Env, s *Service, in *Inputs) []*Endpoint {
	return join(env, s, in).used
}

// leftOut reports the endpoints that do not count.
func (u *unit) leftOut(j *joined) {
	for _, why := range []refusal{privateAddress, metadataAddress, ownAddress, nodePort, etcdPort, etcdCheck} {
		all := j.refused[why]
		u.each(all, "address", func(*Endpoint) bool { return true }, func(field, whose string) {
			u.refuse(Refused, field, "%s", why.text(whose, all))
		})
	}
	if j.beyond > 0 {
		s := u.service
		u.problem(SeverityError, "endpoints", "%d endpoints behind %d frontends are too many: %d, registered last by key, are not used, because one service may have %d backends in all. Divide it into several services",
			len(j.used)+j.beyond, len(s.Ports)*len(s.Addresses()), j.beyond, MaxBackends)
	}
}

// text says why endpoints are not used, and which setting allows it. Whose names the endpoints that have no place in the text.
func (r refusal) text(whose string, endpoints []*Endpoint) string {
	if r == privateAddress {
		return fmt.Sprintf("endpoints from etcd with loopback or link-local addresses are not used%s: clients from anywhere would reach what listens for programs of this node only. If that is meant, have the service in the node's own file, or name their network in addresses.allowed of its configuration", whose)
	}
	const shown = 5
	var networks []string
	for _, e := range endpoints {
		if network := fmt.Sprintf("%q", alone(e.Address)); len(networks) < shown && !slices.Contains(networks, network) {
			networks = append(networks, network)
		}
	}
	remedy := fmt.Sprintf("If it is meant, add allowed_endpoints = [%s] to [addresses] of the host's configuration, or define the service there", strings.Join(networks, ", "))
	switch r {
	case metadataAddress:
		return fmt.Sprintf("endpoints from etcd at the address of a cloud's metadata are not used%s: clients and checks would get what the cloud has for this host alone. %s; a larger network does not allow it", whose, remedy)
	case ownAddress:
		return fmt.Sprintf("endpoints from etcd are not used on the host that has their address%s: clients would reach programs that its firewall may keep from them. %s", whose, remedy)
	case etcdCheck:
		return fmt.Sprintf("endpoints from etcd are not used if health.port is a port of etcd there%s: checks would reach it as this host does. Remove health.port, or define the service in the host's own file", whose)
	case nodePort:
		return fmt.Sprintf("endpoints from etcd on ports below %d of other nodes (target_port or health.port) are not used%s: the node may accept such connections from this host alone. %s", firstNodePort, whose, remedy)
	}
	return fmt.Sprintf("endpoints from etcd on ports of etcd are not used%s: clients would reach it as this host does. %s; a larger network does not allow it", whose, remedy)
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
