package balancer

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer/decode"
)

// checkEndpoints checks each endpoint of s by itself, and then against the ports and VIPs of s and
// against the other endpoints.
func (r *tableReader) checkEndpoints(s *Service) {
	names := make([]string, 0, len(s.Ports))
	for i := range s.Ports {
		if name := s.Ports[i].Name; name != "" {
			names = append(names, name)
		}
	}
	portsRead, vipsRead := !r.isBroken("ports"), !r.isBroken("vips")
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		r.checkEndpoint(e, func(field string) string { return element("endpoints", i, field) })
		if portsRead && len(e.Ports) > 0 {
			r.checkPortNames(e, names, i)
		}
		if vipsRead && e.Address.IsValid() {
			r.checkReach(s, e, i)
		}
		if s.Health == nil && !r.isBroken("health") {
			r.checkOwnHealth(e, i)
		}
	}
	if portsRead {
		r.checkRangeOverrides(s)
		r.checkDuplicates(s)
	}
}

// checkEndpoint checks a single endpoint. The function at returns the path of a field.
func (r *tableReader) checkEndpoint(e *Endpoint, at func(field string) string) {
	if !e.Address.IsValid() && e.Name == "" {
		r.errorf(at("address"), "needs an address, such as 192.168.1.11")
	} else if why := NotUnicast(e.Address); why != "" {
		r.errorf(at("address"), "%s is %s: an endpoint needs the address of a single host", e.Address, why)
	} else if e.Address.Is6() && e.Address.IsLinkLocalUnicast() {
		r.warnf(at("address"), "%s is link-local, and its interface can't be set here, so connections fail. Use a global address, or one in fd00::/8", e.Address)
	}
	if e.Weight < 0 || e.Weight > MaxWeight {
		r.errorf(at("weight"), "%d is out of range; use 0 (no new connections) to %d", e.Weight, MaxWeight)
	}
	if e.MaxConnections < 0 || e.MaxConnections > maxMaxConnections {
		r.errorf(at("max_connections"), "%d is out of range; use 0 (no limit) to %d", e.MaxConnections, maxMaxConnections)
	}
	if len(e.Ports) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		if e.Ports[name] == 0 {
			r.errorf(decode.Join(at("ports"), name), "0 is not a port; use 1 to 65535")
		}
	}
}

// checkPortNames reports port names in endpoint i that are not names of the service's ports.
func (r *tableReader) checkPortNames(e *Endpoint, names []string, i int) {
	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		if slices.Contains(names, name) {
			continue
		}
		path := decode.Join(element("endpoints", i, "ports"), name)
		switch near := decode.Nearest(name, names); {
		case len(names) == 0:
			r.errorf(path, "the service's port has no name: use port, or give ports[0] the name %q", name)
		case near != "":
			r.errorf(path, "the service has no port named %q; did you mean %q?", name, near)
		default:
			r.errorf(path, "the service has no port named %q; its ports are %s", name, strings.Join(names, ", "))
		}
	}
}

// checkRangeOverrides reports ports of endpoints that would replace a port range.
func (r *tableReader) checkRangeOverrides(s *Service) {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		for j := range s.Ports {
			p := &s.Ports[j]
			if !p.Port.IsRange() {
				continue
			}
			if _, named := e.Ports[p.Name]; named {
				r.errorf(decode.Join(element("endpoints", i, "ports"), p.Name), "can't replace a range of ports: set target_port of ports[%d]", j)
			} else if e.Port != 0 && len(s.Ports) == 1 {
				r.errorf(element("endpoints", i, "port"), "can't replace a range of ports: set target_port of ports[%d]", j)
			}
		}
	}
}

// checkOwnHealth warns about health settings of endpoint i, which have no effect because the
// service has no checks.
func (r *tableReader) checkOwnHealth(e *Endpoint, i int) {
	if e.HealthPort != 0 {
		r.warnf(element("endpoints", i, "health_port"), "has no effect: the service has no health checks")
	}
	if e.IsUnchecked() {
		r.warnf(element("endpoints", i, "health"), "has no effect: the service has no health checks")
	}
}

// checkReach warns if endpoint i is never used, or if connections to it may loop back to the
// service.
func (r *tableReader) checkReach(s *Service, e *Endpoint, i int) {
	own := slices.Contains(s.VIPs, e.Address)
	if own && r.leadsBack(s, e) {
		r.warnf(element("endpoints", i, "address"), "%s is a VIP of this service, and the endpoint's port is another port of the service: connections might loop", e.Address)
	}
	if own || len(s.VIPs) == 0 || len(s.Pools) > 0 {
		return
	}
	serves := func(vip netip.Addr) bool { return vip.Is4() == e.Address.Is4() }
	nodePort := slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 })
	if !slices.ContainsFunc(s.VIPs, serves) && !nodePort {
		family := "IPv6"
		if e.Address.Is4() {
			family = "IPv4"
		}
		r.warnf(element("endpoints", i, "address"), "%s is never used: the service has no %s VIP", e.Address, family)
	}
}

// leadsBack reports whether connections to e can return to the service, because e is at one of its
// VIPs and its target port is another port of the service. If the target port equals the port
// itself, the compiler reports the loop.
func (r *tableReader) leadsBack(s *Service, e *Endpoint) bool {
	for i := range s.Ports {
		p := &s.Ports[i]
		target := e.TargetPort(p)
		open := func(q Port) bool { return q.Port.Contains(target) && q.Port != p.Port && q.Protocol == p.Protocol }
		if target != 0 && slices.ContainsFunc(s.Ports, open) {
			return true
		}
	}
	return false
}

// checkDuplicates reports endpoints with the same address: an error if all of their ports are
// equal, and a warning if only some are.
func (r *tableReader) checkDuplicates(s *Service) {
	type target struct {
		port int // index of the service's port
		name string
		at   netip.AddrPort
	}
	first := make(map[target]int, len(s.Endpoints)*len(s.Ports))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Host() == "" {
			continue
		}
		shared := 0
		other := 0
		name := ""
		for j := range s.Ports {
			p := &s.Ports[j]
			t := target{j, e.Name, netip.AddrPortFrom(e.Address, e.TargetPort(p))}
			if k, again := first[t]; again {
				shared = shared + 1
				other = k
				name = p.Name
			} else {
				first[t] = i
			}
		}
		switch {
		case shared == 0:
		case shared == len(s.Ports):
			r.errorf(element("endpoints", i, ""), "%s has the same ports as endpoints[%d], so it is a duplicate", e.Host(), other)
		default:
			r.warnf(element("endpoints", i, ""), "%s has the same port as endpoints[%d] for %s, so the two count only once for that port", e.Host(), other, name)
		}
	}
}
