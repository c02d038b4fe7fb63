package recorder

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
)

// tellWithdrawn records the VIPs that are withdrawn from now on, and those that are so no more.
func (r *Recorder) tellWithdrawn(last, s *model.State, now time.Time) {
	for vip, c := range snap.Diff(last.Desired.Standings, s.Desired.Standings) {
		switch {
		case c.New == balancer.Withdrawn:
			if r.withdrawn == nil {
				r.withdrawn = map[netip.Addr]time.Time{}
			}
			r.withdrawn[vip] = now
			cause := "no endpoint of " + servicesOn(vip, s.Desired) + " is usable"
			if s.Env.Standby {
				cause = "this host is on standby"
			}
			r.o.Journal.Record(events.Event{
				Kind: events.VIP, Level: slog.LevelWarn, Text: fmt.Sprintf("withdrew %s: this host does not hold it", vip), Cause: cause,
			})
		case c.Old == balancer.Withdrawn && c.New == balancer.Serving:
			e := events.Event{Kind: events.VIP, Text: fmt.Sprintf("holds %s again: an endpoint of %s is usable", vip, servicesOn(vip, s.Desired)), Was: "withdrawn"}
			if since, known := r.withdrawn[vip]; known {
				e.Lasted = now.Sub(since)
			}
			r.o.Journal.Record(e)
			delete(r.withdrawn, vip)
		case c.Old == balancer.Withdrawn:
			delete(r.withdrawn, vip)
		}
	}
}

// servicesOn names the services on a VIP.
func servicesOn(vip netip.Addr, desired balancer.Desired) string {
	var names []string
	seen := map[balancer.Name]bool{}
	for key, f := range desired.Frontends.From(balancer.Key{Addr: vip}) {
		if key.Addr != vip {
			break
		}
		if !f.NodePort && !seen[f.Service] {
			seen[f.Service] = true
			names = append(names, string(f.Service))
		}
	}
	return strings.Join(names, ", ")
}
