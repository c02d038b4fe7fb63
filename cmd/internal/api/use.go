package api

import "vipd/balancer"

// Use counts endpoints of a service that get new connections, of how many: at the port that is worst off. Its zero value is ready.
type Use struct{ ports map[string]use }

type use struct{ active, all int }

// Add counts an endpoint at one of its ports. One that was removed, and drains, is left out.
func (u *Use) Add(port string, state balancer.BackendState) {
	if state == balancer.Removed {
		return
	}
	if u.ports == nil {
		u.ports = map[string]use{}
	}
	p := u.ports[port]
	p.all++
	if state == balancer.Active {
		p.active++
	}
	u.ports[port] = p
}

// Worst returns the counts of the port that is worst off.
func (u *Use) Worst() (active, all int) {
	first := true
	for _, p := range u.ports {
		if first || p.active < active || p.active == active && p.all > all {
			active, all, first = p.active, p.all, false
		}
	}
	return active, all
}
