package metrics

import (
	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/guard"
)

// collectLimits reports the services with limits whose counts are incomplete.
func (m *Metrics) collectLimits(tell emitter) {
	v := m.Views.Look()
	full := map[balancer.Name]bool{}
	for name, s := range v.State.Snapshot.Services.All() {
		if s.Limits != nil {
			full[name] = false
		}
	}
	if len(full) == 0 {
		return
	}
	if d, counts := dataplane.As[dataplane.CountsClients](v.Mode.Dataplane); counts {
		for _, name := range d.FullLimits() {
			full[name] = true
		}
	} else if places, err := guard.FullLimits(); err != nil {
		return // omit the series, because the state is unknown
	} else {
		markFull(full, v.State.Desired, places)
	}
	for name, is := range full {
		tell.gauge("limits_full", "1 if connections to a service had no limit in the last minute, because the service had too many sources.", oneIf(is), "service", string(name))
	}
}

// markFull marks the services that have a frontend with one of these keys.
func markFull(full map[balancer.Name]bool, d balancer.Desired, places []balancer.Key) {
	for _, at := range places {
		if _, f := balancer.FrontendAt(d.Frontends, at); f != nil {
			full[f.Service] = true
		}
	}
}
