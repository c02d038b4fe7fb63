package daemon

import (
	"github.com/prometheus/client_golang/prometheus"
)

// ownedCollector shows how the owner of VIPs on this host is, where there is one.
type ownedCollector struct {
	d                               *Daemon
	owner, gate, late               *prometheus.Desc
	takeovers, moves, closed, alien *prometheus.Desc
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
		alien:     desc("vipd_ownership_foreign_heartbeats_total", "Heartbeats that were signed with another key."),
	}
}

// Describe implements prometheus.Collector.
func (c *ownedCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.owner, c.gate, c.late, c.takeovers, c.moves, c.closed, c.alien} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *ownedCollector) Collect(out chan<- prometheus.Metric) {
	if c.d.owned == nil || c.d.owned.Status() == nil {
		return
	}
	s := c.d.owned.Status()
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	for _, a := range s.Bound {
		tell(c.owner, prometheus.GaugeValue, 1, a.String())
	}
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
