package api

import (
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
)

// PortUse counts a port's endpoints.
type PortUse struct {
	// Port is the port's name. It is "" if the service has only one port and that port has no name.
	Port string `json:"port,omitempty"`
	// Up is the number of endpoints that get new connections. Of is the total number of endpoints.
	Up int `json:"up"`
	Of int `json:"of"`
}

// Use counts a service's endpoints for each port, in the order in which the ports were added.
type Use []PortUse

// UseOf counts a service's endpoints.
func UseOf(endpoints []Endpoint) (u Use) {
	for i := range endpoints {
		u.Add(endpoints[i].Port, endpoints[i].State)
	}
	return u
}

// Add counts an endpoint at one of its ports. It ignores a removed endpoint that is still draining.
func (u *Use) Add(port string, state balancer.BackendState) {
	if state != balancer.Removed {
		u.Count(port, state == balancer.Active)
	}
}

// Count adds an endpoint to a port's counts. up reports whether the endpoint gets new connections.
func (u *Use) Count(port string, up bool) {
	i := slices.IndexFunc(*u, func(p PortUse) bool { return p.Port == port })
	if i < 0 {
		i = len(*u)
		*u = append(*u, PortUse{Port: port})
	}
	(*u)[i].Of++
	if up {
		(*u)[i].Up++
	}
}

// At returns one port's counts.
func (u Use) At(port string) PortUse {
	for _, p := range u {
		if p.Port == port {
			return p
		}
	}
	return PortUse{Port: port}
}

// Worst returns the counts for the port with the fewest endpoints that get new connections.
func (u Use) Worst() (up, of int) {
	for i, p := range u {
		if i == 0 || p.Up < up || p.Up == up && p.Of > of {
			up, of = p.Up, p.Of
		}
	}
	return up, of
}

// None reports whether no port has an endpoint that gets new connections.
func (u Use) None() bool { return !slices.ContainsFunc(u, func(p PortUse) bool { return p.Up > 0 }) }

// listedPorts is the maximum number of ports that Text lists one by one.
const listedPorts = 3

// Text formats the counts, with sep between the two numbers: "3/3" if all ports have the same
// counts, otherwise "http 3/3, metrics 0/3". If there are many ports, those with the same counts
// share a part: "7 ports 3/3, metrics 0/3".
func (u Use) Text(sep string) string {
	type part struct {
		counts string
		ports  []string
	}
	parts := []part{}
	for _, p := range u {
		counts := fmt.Sprint(p.Up, sep, p.Of)
		i := slices.IndexFunc(parts, func(p part) bool { return p.counts == counts })
		if i < 0 {
			i = len(parts)
			parts = append(parts, part{counts: counts})
		}
		parts[i].ports = append(parts[i].ports, p.Port)
	}
	switch len(parts) {
	case 0:
		return "0" + sep + "0"
	case 1:
		return parts[0].counts
	}
	texts := []string{}
	if len(u) <= listedPorts {
		for _, p := range u {
			texts = append(texts, fmt.Sprint(p.Port, " ", p.Up, sep, p.Of))
		}
		return strings.Join(texts, ", ")
	}
	for _, p := range parts {
		name := p.ports[0]
		if n := len(p.ports); n > 1 {
			name = fmt.Sprintf("%d ports", n)
		}
		texts = append(texts, name+" "+p.counts)
	}
	return strings.Join(texts, ", ")
}
