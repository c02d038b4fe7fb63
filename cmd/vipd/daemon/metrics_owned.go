package daemon

import (
	"github.com/prometheus/client_golang/prometheus"
)

// ownedCollector shows how the owner of VIPs on this host is, where there is one.
type ownedCollector struct {
	d                                                  *Daemon
	owner, unowned, gate, late, peer                   *prometheus.Desc
	takeovers, moves, closed, alien, rivals, announced *prometheus.Desc
}

func newOwnedCollector(d *Daemon) *ownedCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &ownedCollector{
		d: d, owner: desc("vipd_vip_owner", "1 where this host owns the VIP.", "vip"),
		gate:      desc("vipd_ownership_gate_open", "1 where frames of owned VIPs may pass."),
		late:      desc("vipd_ownership_late_seconds_max", "The longest that vipd owner had to wait for a processor."),
		takeovers: desc("vipd_ownership_takeovers_total", "VIPs that this host took, since vipd owner started.", "reason"),
		moves:     desc("vipd_ownership_moves_total", "VIPs that this host gave away, since vipd owner started.", "reason"),
		closed:    desc("vipd_ownership_gate_closed_total", "VIPs that were silenced by the gate, or gates without any.", "reason"),
		unowned:   desc("vipd_vip_unowned", "1 where no host that lives owns the VIP.", "vip"),
		peer:      desc("vipd_ownership_peer_up", "1 where the other host has confirmed this one within a second.", "peer"),
		rivals:    desc("vipd_ownership_rivals_total", "How often another host said that it has a VIP of this one, at most once a second.", "vip"),
		announced: desc("vipd_ownership_announcements_total", "Announcements of VIPs to neighbours, since vipd owner started."),
		alien:     desc("vipd_ownership_foreign_heartbeats_total", "Heartbeats that were signed with another key."),
	}
}

// Describe implements prometheus.Collector.
func (c *ownedCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.owner, c.unowned, c.gate, c.late, c.peer, c.takeovers, c.moves, c.closed, c.alien, c.rivals, c.announced,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *ownedCollector) Collect(out chan<- prometheus.Metric) {
	s := c.d.owned.Status()
	if s == nil {
		return
	}
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	for _, a := range s.Bound {
		tell(c.owner, prometheus.GaugeValue, 1, a.String())
	}
	for _, a := range s.Unowned {
		tell(c.unowned, prometheus.GaugeValue, 1, a.String())
	}
	for node, age := range s.Confirmed {
		up := 0.0
		if age >= 0 && age < 1 {
			up = 1
		}
		tell(c.peer, prometheus.GaugeValue, up, node)
	}
	for _, r := range s.Rivals {
		tell(c.rivals, prometheus.CounterValue, float64(r.Count), r.VIP.String())
	}
	tell(c.announced, prometheus.CounterValue, float64(s.Announced))
	gate := 0.0
	if s.Gate == "open" {
		gate = 1
	}
	tell(c.gate, prometheus.GaugeValue, gate)
	tell(c.late, prometheus.GaugeValue, s.Late)
	tell(c.alien, prometheus.CounterValue, float64(s.Foreign))
	for d, counts := range map[*prometheus.Desc]map[string]int{c.takeovers: s.Took, c.moves: s.Gave, c.closed: s.GateClosed} {
		for reason, n := range counts {
			tell(d, prometheus.CounterValue, float64(n), reason)
		}
	}
}
