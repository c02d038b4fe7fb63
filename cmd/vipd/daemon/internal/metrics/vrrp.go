package metrics

import "vipd/balancer/failover/vrrp"

// emitVRRPGroup reports the state and the counts of a VRRP group.
func emitVRRPGroup(tell emitter, g *vrrp.GroupStatus) {
	for _, state := range []vrrp.State{vrrp.Init, vrrp.Backup, vrrp.Claiming, vrrp.Active} {
		tell.gauge("vrrp_state", "1 for the group's current state on this host, otherwise 0.", oneIf(g.State == state), "group", g.Name, "state", string(state))
	}
	tell.gauge("vrrp_priority", "Priority in the next advert of this host; 1 if it can't serve the VIPs.", float64(g.Priority), "group", g.Name)
	tell.counter("vrrp_adverts_sent_total", "Adverts that this host has sent, since vipd owner started.", g.Counters.Sent, "group", g.Name)
	for _, r := range g.Routers {
		if !r.Named {
			continue
		}
		router := r.Addr.String()
		tell.counter("vrrp_adverts_received_total", "Accepted adverts from another router.", r.Received, "group", g.Name, "router", router)
		if r.Age >= 0 {
			tell.gauge("vrrp_advert_age_seconds", "Age of the last accepted advert from another router.", r.Age.Seconds(), "group", g.Name, "router", router)
		}
	}
	for reason, n := range g.Counters.Dropped {
		tell.counter("vrrp_adverts_dropped_total", "Dropped adverts from other routers.", n, "group", g.Name, "reason", string(reason))
	}
	for _, c := range g.Counters.Changes {
		tell.counter("vrrp_changes_total", "Number of times that the group entered the state.", c.Count, "group", g.Name, "to", string(c.To), "reason", c.Why)
	}
	tell.gauge("vrrp_late_seconds_max", "Longest delay with which this host sent an advert.", g.Counters.Late.Seconds(), "group", g.Name)
}
