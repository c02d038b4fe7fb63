package daemon

import "vipd/cmd/internal/api"

// collectOwned tells how the owner of VIPs on this host is, where there is one.
func (d *Daemon) collectOwned(tell teller) {
	if s := d.owned.Status(); s != nil {
		tellOwned(tell, s)
	}
}

func tellOwned(tell teller, s *api.OwnerStatus) {
	for _, a := range s.Bound {
		tell.gauge("vip_owner", "1 where this host owns the VIP.", 1, "vip", a.String())
	}
	for _, a := range s.Unowned {
		tell.gauge("vip_unowned", "1 where no host that lives owns the VIP.", 1, "vip", a.String())
	}
	for _, p := range s.Peers {
		tell.gauge("ownership_peer_up", "1 where the other host is heard on the network.", oneIf(p.Up), "peer", p.Node, "network", p.Network)
	}
	tell.histogram("ownership_confirmed_seconds", "For how long the session of this host is confirmed, looked at every 10 ms; below the gate's time VIPs rest.", &s.ConfirmedFor)
	tell.histogram("ownership_takeover_seconds", "Time from the last sign of a VIP's owner until this host had taken it.", &s.TakenAfter)
	for _, r := range s.Rivals {
		tell.counter("ownership_rivals_total", "How often another host said that it has a VIP of this one, at most once a second.", uint64(r.Count), "vip", r.VIP.String())
	}
	tell.counter("ownership_announcements_total", "Announcements of VIPs to neighbours, since vipd owner started.", s.Announced)
	tell.gauge("ownership_gate_open", "1 where frames of owned VIPs may pass.", oneIf(s.Gate == "open"))
	tell.gauge("ownership_late_seconds_max", "The longest that vipd owner had to wait for a processor.", s.Late)
	tell.counter("ownership_foreign_heartbeats_total", "Heartbeats that were signed with another key.", uint64(s.Foreign))
	for _, c := range []struct {
		name, help string
		of         map[string]int
	}{
		{"ownership_takeovers_total", "VIPs that this host took, since vipd owner started.", s.Took},
		{"ownership_moves_total", "VIPs that this host gave away, since vipd owner started.", s.Gave},
		{"ownership_gate_closed_total", "VIPs that were silenced by the gate, or gates without any.", s.GateClosed},
	} {
		for reason, n := range c.of {
			tell.counter(c.name, c.help, uint64(n), "reason", reason)
		}
	}
}
