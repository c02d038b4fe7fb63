package lookup

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// Targets lists what a request is about, in order.
func (p Place) Targets(q *api.OverrideRequest) ([]balancer.Target, error) {
	switch {
	case q.Node != "" && (q.Service != "" || q.Address != ""):
		return nil, errors.New("name either a service and an address or a node, not both")
	case q.Node != "":
		return p.onNode(q.Node)
	case q.Service == "" || q.Address == "":
		return nil, errors.New("name a service and the address of one of its endpoints, or a node")
	}
	service, err := p.Service(q.Service)
	if err != nil {
		return nil, err
	}
	t, err := balancer.ParseTarget(q.Service, q.Address)
	if err != nil {
		return nil, err
	}
	if len(p.Endpoints(t)) > 0 || p.Overrides.Has(t) { // an endpoint may be gone, and what was said of it not
		return []balancer.Target{t}, nil
	}
	return nil, fmt.Errorf("service %s has no endpoint %s; it has %s", q.Service, q.Address, Some(p.Addresses(service)))
}

// NoEndpointsError says that no endpoint is on a node.
type NoEndpointsError struct{ text string }

// Error returns the text.
func (e *NoEndpointsError) Error() string { return e.text }

// onNode lists every endpoint on a node, of all services.
func (p Place) onNode(node string) ([]balancer.Target, error) {
	var targets []balancer.Target
	var nodes []string
	for _, service := range p.Services.All() {
		for _, e := range balancer.EndpointsOf(service, p.Inputs) {
			if e.Node == node {
				targets = append(targets, targetsAt(service, e)...)
			} else if e.Node != "" {
				nodes = append(nodes, e.Node)
			}
		}
	}
	if targets == nil {
		return nil, &NoEndpointsError{fmt.Sprintf("no endpoint%s is on node %q: endpoints say where they run in their field node%s", p.Name, node, Meant(node, nodes))}
	}
	slices.SortFunc(targets, balancer.Target.Compare)
	return slices.Compact(targets), nil
}

// targetsAt names one endpoint: by its address alone where that has no port, else at each of the service's
// ports, for another endpoint may be at the same address.
func targetsAt(service *balancer.Service, e *balancer.Endpoint) []balancer.Target {
	if e.Port == 0 && len(e.Ports) == 0 {
		return []balancer.Target{{Service: service.Name, Addr: e.Address}}
	}
	return each(service, e)
}

// Asked is what a request wants to be said of its targets, from now on.
func Asked(q *api.OverrideRequest, now time.Time) (balancer.Override, error) {
	o := balancer.Override{Weight: q.Weight, Draining: q.Draining, By: q.By, Reason: q.Reason}
	if q.Weight == nil && q.Draining == nil {
		return o, errors.New("say what to change: a weight, or whether to drain")
	}
	if q.Weight != nil && *q.Weight != balancer.TakenBack && (*q.Weight < 0 || *q.Weight > balancer.MaxWeight) {
		return o, fmt.Errorf("weight %d is out of range: 0 (no new connections) to %d", *q.Weight, balancer.MaxWeight)
	}
	if q.Timeout < 0 || q.Expires < 0 {
		return o, errors.New("a time can't be negative; leave it out, or give one above zero")
	}
	now = now.UTC().Round(0)
	if q.Timeout > 0 {
		o.Until = now.Add(q.Timeout)
	}
	if q.Expires > 0 {
		o.Expires = now.Add(q.Expires)
	}
	return o, nil
}
