package lookup

import (
	"fmt"
	"slices"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/balancer/snap"
	"vipd/cmd/internal/wording"
)

// Place is a set of services in which names are looked up.
type Place struct {
	// Inputs contains the services, their endpoints and the manual overrides.
	*balancer.Inputs
	// Name is the text that error messages append to a service or an endpoint, such as " in etcd".
	Name string
}

// Service returns the service with this name. If there is none, the error suggests or lists known
// names.
func (p Place) Service(name balancer.Name) (*balancer.Service, error) {
	s, ok := p.Services.Get(name)
	if ok {
		return s, nil
	}
	return nil, fmt.Errorf("there is no service %q%s%s", name, p.Name, Other(string(name), names(p.Services)))
}

// Endpoints returns the endpoints that a target selects.
func (p Place) Endpoints(t balancer.Target) (at []*balancer.Endpoint) {
	service := p.Services.At(t.Service)
	if service == nil {
		return nil
	}
	for _, e := range balancer.EndpointsOf(service, p.Inputs) {
		if e.Address == t.Addr && (t.Port == 0 || serves(service, e, t.Port)) {
			at = append(at, e)
		}
	}
	return at
}

// serves reports whether any of the service's ports sends connections to this port of e.
func serves(service *balancer.Service, e *balancer.Endpoint, port uint16) bool {
	return slices.ContainsFunc(service.Ports, func(p balancer.Port) bool { return e.TargetPort(&p) == port })
}

// Target parses the address of a service's endpoint: ADDRESS, ADDRESS:PORT or ADDRESS:FIRST-LAST.
// It refuses a port range that no endpoint at the address has.
func (p Place) Target(service *balancer.Service, address string) (balancer.Target, error) {
	t, ports, err := balancer.ParseEndpoint(service.Name, address)
	if err != nil || !ports.IsRange() {
		return t, err
	}
	hasRange := func(e *balancer.Endpoint) bool {
		return slices.ContainsFunc(service.Ports, func(p balancer.Port) bool { return e.TargetPorts(&p) == ports })
	}
	if !slices.ContainsFunc(p.Endpoints(t), hasRange) {
		return t, p.absent(service, address)
	}
	return t, nil
}

// absent returns the error for an address without an endpoint.
func (p Place) absent(service *balancer.Service, address string) error {
	return fmt.Errorf("service %s has no endpoint %s; it has %s", service.Name, address, wording.Some(p.Addresses(service), 8))
}

// Addresses lists the service's endpoints as ADDRESS:PORT or ADDRESS:FIRST-LAST, with an entry for
// each target port.
func (p Place) Addresses(service *balancer.Service) (all []string) {
	for _, e := range balancer.EndpointsOf(service, p.Inputs) {
		for i := range service.Ports {
			at := balancer.Key{Addr: e.Address, Port: e.TargetPorts(&service.Ports[i])}.Place()
			if !slices.Contains(all, at) {
				all = append(all, at)
			}
		}
	}
	return all
}

// each returns an endpoint's targets: its address with each port to which the service sends
// connections.
func each(service *balancer.Service, e *balancer.Endpoint) (targets []balancer.Target) {
	for i := range service.Ports {
		t := balancer.Target{Service: service.Name, Addr: e.Address, Port: e.TargetPort(&service.Ports[i])}
		if !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	return targets
}

// Meant returns "; did you mean X?", where X is the known name that is most similar to name. It
// returns "" if no name is similar.
func Meant(name string, known []string) string {
	near := decode.Nearest(name, known)
	if near == "" {
		return ""
	}
	return "; did you mean " + near + "?"
}

// Other returns the suggestion from [Meant] or, if there is none, a list of the known names.
func Other(name string, known []string) string {
	if near := Meant(name, known); near != "" {
		return near
	}
	if len(known) == 1 {
		return "; there is " + known[0]
	}
	return "; there are " + wording.Some(known, 8)
}

func names(services snap.Map[balancer.Name, *balancer.Service]) (out []string) {
	for name := range services.Keys() {
		out = append(out, string(name))
	}
	return out
}
