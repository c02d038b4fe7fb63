package metrics

import "vipd/balancer/failover/vrrp"

// emitVRRPGroup reports the state and the counts of a VRRP group.
func emitVRRPGroup(tell emitter, g *vrrp.GroupStatus) {
	for _, state := range []vrrp.State{vrrp.Init, vrrp.Backup, vrrp.Claiming, vrrp.Active} {
		tell.gauge("vrrp_state", "1 for the state of the group on this host.", oneIf(g.State == state), "group", g.Name, "state", string(state))
	}
	tell.gauge("vrrp_priority", "Priority in the next advert of this host; 1 if it can't serve the VIPs.", float64(g.Priority), "group", g.Name)
	tell.counter("vrrp_adverts_sent_total", "Adverts that this host has sent, since vipd owner started.", g.Counters.Sent, "group", g.Name)
	for _, r := range g.Routers {
		if !r.Named {
			continue
		}
		router := r.Addr.String()
		tell.counter("vrrp_adverts_received_total", "Adverts of another router that were accepted.", r.Received, "group", g.Name, "router", router)
		if r.Age >= 0 {
			tell.gauge("vrrp_advert_age_seconds", "Age of the last accepted advert of another router.", r.Age.Seconds(), "group", g.Name, "router", router)
		}
	}
	for reason, n := range g.Counters.Dropped {
		tell.counter("vrrp_adverts_dropped_total", "Adverts of other routers that were dropped.", n, "group", g.Name, "reason", string(reason))
	}
	for _, c := range g.Counters.Changes {
		tell.counter("vrrp_changes_total", "Changes of the group to a state.", c.Count, "group", g.Name, "to", string(c.To), "reason", c.Why)
	}
	tell.gauge("vrrp_late_seconds_max", "Longest time by which an advert of this host was sent too late.", g.Counters.Late.Seconds(), "group", g.Name)
}
