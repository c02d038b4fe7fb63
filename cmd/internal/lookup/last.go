package lookup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// Spares returns an error if the request would take the last usable endpoint of a service from new connections, at any of its
// ports and in either family, and is not forced. An endpoint is usable that does not drain, has a weight, and is not down by
// what in knows of health.
func Spares(in *balancer.Inputs, q *api.OverrideRequest, targets []balancer.Target) error {
	takes := q.Draining != nil && *q.Draining || q.Weight != nil && *q.Weight == 0
	if q.Force || !takes {
		return nil
	}
	var last []string
	for i, t := range targets {
		s := in.Services.At(t.Service)
		if s == nil || i > 0 && targets[i-1].Service == t.Service { // they are in order
			continue
		}
		if ports := lastAt(in, s, targets); len(ports) > 0 {
			last = append(last, fmt.Sprintf("service %s (%s)", s.Name, strings.Join(ports, ", ")))
		}
	}
	if last == nil {
		return nil
	}
	return errors.New("no usable endpoint would be left of " + Some(last) + ", so that new connections would fail: nothing was changed; --force does it anyway")
}

// lastAt names the ports of a service of which the targets are all endpoints that are usable.
func lastAt(in *balancer.Inputs, s *balancer.Service, targets []balancer.Target) (ports []string) {
	for _, vip := range s.Addresses() {
		for i := range s.Ports {
			p := &s.Ports[i]
			taken, left := 0, 0
			for _, e := range balancer.EndpointsOf(s, in) {
				t := balancer.Target{Service: s.Name, Addr: e.Address, Port: e.TargetPort(p)}
				switch {
				case e.Address.Is4() != vip.Is4() || !usable(in, e, t):
				case slices.ContainsFunc(targets, func(of balancer.Target) bool { return covers(of, t) }):
					taken++
				default:
					left++
				}
			}
			if words := "port " + s.PortWords(p, vip); taken > 0 && left == 0 && !slices.Contains(ports, words) {
				ports = append(ports, words)
			}
		}
	}
	return ports
}

// covers reports whether a target names the endpoint at t, which has a port.
func covers(of, t balancer.Target) bool {
	return of.Service == t.Service && of.Addr == t.Addr && (of.Port == 0 || of.Port == t.Port)
}

func usable(in *balancer.Inputs, e *balancer.Endpoint, t balancer.Target) bool {
	weight, draining := balancer.OverrideOf(in, t).Effective(e.Weight, e.Draining)
	return weight > 0 && !draining && in.Health.At(t) != balancer.HealthDown
}
