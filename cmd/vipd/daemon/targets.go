package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/cmd/internal/api"
)

// targetsOf finds the endpoints that a request is about.
func targetsOf(q *api.OverrideRequest, s *state) ([]balancer.Target, error) {
	switch {
	case q.Node != "" && (q.Service != "" || q.Address != ""):
		return nil, errors.New("name either a service and an address or a node, not both")
	case q.Node != "":
		return targetsOnNode(q.Node, s)
	case q.Service == "" || q.Address == "":
		return nil, errors.New("name a service and the address of one of its endpoints, or a node")
	}
	service, ok := s.snapshot.Services.Get(q.Service)
	if !ok {
		return nil, noService(q.Service, s)
	}
	t, err := balancer.ParseTarget(q.Service, q.Address)
	if err != nil {
		return nil, err
	}
	var known []string
	for _, at := range addresses(service, s) {
		if at.Addr() == t.Addr && (t.Port == 0 || t.Port == at.Port()) {
			return []balancer.Target{t}, nil
		}
		known = append(known, at.String())
	}
	if s.local.Has(t) {
		return []balancer.Target{t}, nil // the endpoint is gone, what was said of it is not
	}
	return nil, fmt.Errorf("service %s has no endpoint %s; it has %s", q.Service, q.Address, list(known))
}

// targetsOnNode finds every endpoint on a node.
func targetsOnNode(node string, s *state) ([]balancer.Target, error) {
	var targets []balancer.Target
	var nodes []string
	for _, service := range s.snapshot.Services.All() {
		for _, e := range endpoints(service, s) {
			if e.Node == node {
				targets = append(targets, targetsAt(service, e)...)
			} else if e.Node != "" {
				nodes = append(nodes, e.Node)
			}
		}
	}
	if targets == nil {
		if near := decode.Nearest(node, nodes); near != "" {
			return nil, fmt.Errorf("no endpoint is on node %q; did you mean %q?", node, near)
		}
		return nil, fmt.Errorf("no endpoint is on node %q: endpoints say where they run in their field node", node)
	}
	return targets, nil
}

// targetsAt names one endpoint: by its address alone where that has no port of its own, else at each of the service's
// ports, for another endpoint may be at the same address.
func targetsAt(service *balancer.Service, e *balancer.Endpoint) []balancer.Target {
	if e.Port == 0 && len(e.Ports) == 0 {
		return []balancer.Target{{Service: service.Name, Addr: e.Address}}
	}
	var targets []balancer.Target
	for i := range service.Ports {
		t := balancer.Target{Service: service.Name, Addr: e.Address, Port: e.TargetPort(&service.Ports[i])}
		if !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	return targets
}

// endpointsAt returns the endpoints that a target names.
func endpointsAt(t balancer.Target, s *state) []*balancer.Endpoint {
	service := s.snapshot.Services.At(t.Service)
	if service == nil {
		return nil
	}
	var at []*balancer.Endpoint
	for _, e := range endpoints(service, s) {
		if e.Address == t.Addr && (t.Port == 0 || hasPort(service, e, t.Port)) {
			at = append(at, e)
		}
	}
	return at
}

// hasPort reports whether e serves a port of the service at that port.
func hasPort(service *balancer.Service, e *balancer.Endpoint, port uint16) bool {
	return slices.ContainsFunc(service.Ports, func(p balancer.Port) bool { return e.TargetPort(&p) == port })
}

// overrideOf makes the override that a request asks for.
func overrideOf(q *api.OverrideRequest) (balancer.Override, error) {
	o := balancer.Override{Weight: q.Weight, Draining: q.Draining, By: q.By, Reason: q.Reason}
	if q.Weight == nil && q.Draining == nil {
		return o, errors.New("say what to change: a weight, or whether to drain")
	}
	if q.Weight != nil && (*q.Weight < 0 || *q.Weight > balancer.MaxWeight) {
		return o, fmt.Errorf("weight %d is out of range: 0 (no new connections) to %d", *q.Weight, balancer.MaxWeight)
	}
	if q.Timeout < 0 || q.Expires < 0 {
		return o, errors.New("a time can't be negative")
	}
	now := time.Now().UTC().Round(0)
	if q.Timeout > 0 {
		o.Until = now.Add(q.Timeout)
	}
	if q.Expires > 0 {
		o.Expires = now.Add(q.Expires)
	}
	return o, nil
}

// endpoints returns the service's own endpoints and those published apart.
func endpoints(service *balancer.Service, s *state) []*balancer.Endpoint {
	return balancer.EndpointsOf(service, &s.inputs)
}

// addresses returns where the endpoints of a service are reached, at each of its ports.
func addresses(service *balancer.Service, s *state) []netip.AddrPort {
	var all []netip.AddrPort
	for _, e := range endpoints(service, s) {
		for i := range service.Ports {
			all = append(all, netip.AddrPortFrom(e.Address, e.TargetPort(&service.Ports[i])))
		}
	}
	return all
}

func noService(name balancer.Name, s *state) error {
	var names []string
	for n := range s.snapshot.Services.Keys() {
		names = append(names, string(n))
	}
	if near := decode.Nearest(string(name), names); near != "" {
		return fmt.Errorf("there is no service %q; did you mean %q?", name, near)
	}
	return fmt.Errorf("there is no service %q; there are %s", name, list(names))
}

// list joins words for a sentence, and shortens long lists.
func list(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	text := ""
	for i, w := range words {
		if i == 8 {
			return fmt.Sprintf("%s and %d more", text, len(words)-i)
		}
		if i > 0 {
			text += ", "
		}
		text += w
	}
	return text
}
