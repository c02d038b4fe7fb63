package lookup

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/wording"
)

// Targets returns the targets that a request selects, sorted. The request names a node, or a
// service and an endpoint's address or DNS name.
func (p Place) Targets(q *api.OverrideRequest) ([]balancer.Target, error) {
	switch {
	case q.Node != "" && (q.Service != "" || q.Address != ""):
		return nil, errors.New("name either a node, or a service and an address, not both")
	case q.Node != "":
		return p.onNode(q.Node)
	case q.Service == "" || q.Address == "":
		return nil, errors.New("name a service and the address of one of its endpoints, or a node")
	}
	service, err := p.Service(q.Service)
	if err != nil {
		return nil, err
	}
	t, err := p.Target(service, q.Address)
	if name := HostName(q.Address); err != nil && name != "" {
		return p.atName(service, name)
	}
	if err != nil {
		return nil, err
	}
	if len(p.Endpoints(t)) > 0 || p.Overrides.Has(t) { // an override may outlive its endpoint
		return []balancer.Target{t}, nil
	}
	return nil, p.absent(service, q.Address)
}

// HostName returns text in the form of DNS names in services: in lower case and without a trailing
// dot. It returns "" if text is not a DNS name.
func HostName(text string) string {
	if name := strings.ToLower(strings.TrimSuffix(text, ".")); balancer.IsHostName(name) {
		return name
	}
	return ""
}

// atName returns the targets of the service's endpoints that have this DNS name.
func (p Place) atName(service *balancer.Service, name string) ([]balancer.Target, error) {
	var targets []balancer.Target
	var known []string
	for _, e := range balancer.EndpointsOf(service, p.Inputs) {
		if own := HostName(e.Name); own == name {
			targets = append(targets, targetsAt(service, e)...)
		} else if own != "" {
			known = append(known, own)
		}
	}
	if targets == nil {
		for l := range balancer.LookupsOf(service, p.Inputs) {
			if HostName(l.Name) == name {
				return nil, fmt.Errorf("the addresses of %s, an endpoint of service %s, are not known here", name, service.Name)
			}
		}
		return nil, fmt.Errorf("service %s has no endpoint with the name %s%s", service.Name, name, Other(name, known))
	}
	slices.SortFunc(targets, balancer.Target.Compare)
	return slices.Compact(targets), nil
}

// NoEndpointsError means that no endpoint is on the requested node.
type NoEndpointsError struct{ text string }

// Error returns the error's text.
func (e *NoEndpointsError) Error() string { return e.text }

// onNode returns the targets of all services' endpoints on a node.
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
		return nil, &NoEndpointsError{fmt.Sprintf("no endpoint%s is on node %q: an endpoint's field node sets its node%s", p.Name, node, Meant(node, nodes))}
	}
	slices.SortFunc(targets, balancer.Target.Compare)
	return slices.Compact(targets), nil
}

// targetsAt returns the targets of one endpoint. If the endpoint has no ports of its own, its only
// target is its address without a port. Otherwise it has a target for each port, because another
// endpoint may have the same address.
func targetsAt(service *balancer.Service, e *balancer.Endpoint) []balancer.Target {
	if e.Port == 0 && len(e.Ports) == 0 {
		return []balancer.Target{{Service: service.Name, Addr: e.Address}}
	}
	return each(service, e)
}

// Asked returns the override that a request sets.
func Asked(q *api.OverrideRequest, now time.Time) (balancer.Override, error) {
	o := balancer.Override{Weight: q.Weight, Draining: q.Draining, By: q.By, Reason: q.Reason}
	if q.Weight == nil && q.Draining == nil {
		return o, errors.New("the request sets neither a weight nor a drain: set at least one")
	}
	if q.Weight != nil && *q.Weight != balancer.ResetWeight && (*q.Weight < 0 || *q.Weight > balancer.MaxWeight) {
		return o, fmt.Errorf("weight %d is out of range: 0 (no new connections) to %d", *q.Weight, balancer.MaxWeight)
	}
	if q.Timeout < 0 || q.Expires < 0 {
		return o, errors.New("a duration can't be negative; leave it out, or set a duration above zero")
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

// CheckCapacity returns an error if the request would make new connections to a service's port
// fail, for IPv4 or IPv6. It returns nil if the request has Force. New connections fail if the
// request makes usable endpoints unusable, and leaves fewer than min_usable endpoints and no usable
// backup. An endpoint is usable if it is not draining, has a weight above 0, and is not down
// according to its health and its agent.
func CheckCapacity(in *balancer.Inputs, q *api.OverrideRequest, targets []balancer.Target) error {
	if q.Force {
		return nil
	}
	var none, few []string
	for i, t := range targets {
		s := in.Services.At(t.Service)
		if s == nil || i > 0 && targets[i-1].Service == t.Service { // targets are sorted by service
			continue
		}
		last, scarce := endedPorts(in, q, s, targets)
		if len(last) > 0 {
			none = append(none, fmt.Sprintf("service %s (%s)", s.Name, strings.Join(last, ", ")))
		}
		if len(scarce) > 0 {
			few = append(few, fmt.Sprintf("service %s (%s; min_usable = %d)", s.Name, strings.Join(scarce, ", "), s.MinUsable))
		}
	}
	var why []string
	if none != nil {
		why = append(why, "no usable endpoint would remain for "+wording.Some(none, 8))
	}
	if few != nil {
		why = append(why, "fewer usable endpoints than min_usable would remain for "+wording.Some(few, 8))
	}
	if why == nil {
		return nil
	}
	return errors.New(strings.Join(why, ", and ") + ", so new connections would fail: nothing was changed; --force changes it anyway")
}

// endedPorts returns a service's ports at which new connections would fail after the request.
// none lists the ports without usable endpoints. few lists the ports with at least one but fewer
// than min_usable usable endpoints.
func endedPorts(in *balancer.Inputs, q *api.OverrideRequest, s *balancer.Service, targets []balancer.Target) (none, few []string) {
	for _, vip := range s.Addresses() {
		for i := range s.Ports {
			p := &s.Ports[i]
			lost, left, backups := countUsable(in, q, s, p, vip, targets)
			words := "port " + s.PortWords(p, vip)
			switch {
			case lost == 0 || backups > 0 || left >= max(1, s.MinUsable):
			case left == 0 && !slices.Contains(none, words):
				none = append(none, words)
			case left > 0 && !slices.Contains(few, words):
				few = append(few, words)
			}
		}
	}
	return none, few
}

// countUsable counts a port's usable endpoints that have the VIP's address family. lost is the
// number of endpoints that the request makes unusable. Of the remaining endpoints, backups is the
// number of backups, and left the number of endpoints that are not backups. If several endpoints
// have the same address and port, only the first counts.
func countUsable(in *balancer.Inputs, q *api.OverrideRequest, s *balancer.Service, p *balancer.Port, vip netip.Addr, targets []balancer.Target) (lost, left, backups int) {
	seen := map[balancer.Target]bool{}
	for _, e := range balancer.EndpointsOf(s, in) {
		t := balancer.Target{Service: s.Name, Addr: e.Address, Port: e.TargetPort(p)}
		if e.Address.Is4() != vip.Is4() || seen[t] {
			continue
		}
		seen[t] = true
		was := balancer.OverrideOf(in, t)
		next := was
		if i := slices.IndexFunc(targets, func(of balancer.Target) bool { return covers(of, t) }); i >= 0 {
			next = changed(in, q, targets[i], was)
		}
		switch {
		case !usable(in, e, t, was):
		case !usable(in, e, t, next):
			lost++
		case e.Backup:
			backups++
		default:
			left++
		}
	}
	return lost, left, backups
}

// covers reports whether the target in the parameter of selects the endpoint at t. Only that target
// may lack a port.
func covers(of, t balancer.Target) bool {
	return of.Service == t.Service && of.Addr == t.Addr && (of.Port == 0 || of.Port == t.Port)
}

// changed returns the override of an endpoint after the request, which selects the endpoint with
// the target in the parameter of. was is the endpoint's override before the request.
func changed(in *balancer.Inputs, q *api.OverrideRequest, of balancer.Target, was *balancer.Override) *balancer.Override {
	var next balancer.Override
	if was != nil {
		next = *was
	}
	switch wide := in.Overrides.At(balancer.Target{Service: of.Service, Addr: of.Addr}); {
	case q.Weight == nil:
	case *q.Weight != balancer.ResetWeight:
		next.Weight = q.Weight
	case of.Port != 0 && wide != nil: // the weight of all ports applies again
		next.Weight = wide.Weight
	default:
		next.Weight = nil
	}
	if q.Draining != nil {
		next.Draining = q.Draining
	}
	return &next
}

// usable reports whether an endpoint with the override o is usable.
func usable(in *balancer.Inputs, e *balancer.Endpoint, t balancer.Target, o *balancer.Override) bool {
	weight, draining := o.Effective(e.Weight, e.Draining)
	if answer, answered := in.Agents.Get(t); answered && !e.IsUnchecked() && answer.Refuses(o) {
		return false
	}
	return weight > 0 && !draining && in.Health.At(t) != balancer.HealthDown
}
