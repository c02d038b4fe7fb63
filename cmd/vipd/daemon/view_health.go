package daemon

import (
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// checkOf is what the check of a target has found; nil: this node does not check it.
func (v *view) checkOf(s *balancer.Service, t balancer.Target) *api.Check {
	status, checked := v.checks.runner.Status(t)
	if !checked || s.Health == nil {
		return nil
	}
	is := &status.State
	c := &api.Check{
		At: status.At.String(), Type: s.Health.Type, Since: is.Since, Against: is.Streak, Needed: s.Health.Fall, Next: is.Due,
		Checking: status.Checking,
	}
	if is.Verdict == balancer.HealthDown {
		c.Needed = s.Health.Rise
	}
	if is.Last.Outcome != "" {
		c.Last, c.LastOutcome, c.LastText = is.Last.Ended(), string(is.Last.Outcome), is.Last.Text
	}
	if v.watched {
		c.Last, c.Next, c.Checking = time.Time{}, time.Time{}, false
	}
	return c
}

// cuts reports whether the connections of a backend were ended when it went down.
func cuts(b balancer.Backend) bool { return b.State == balancer.Down && !b.Until.IsZero() }

// ramp is how many percent of its weight a backend has while it starts slowly; 0: it does not.
func (v *view) ramp(key balancer.Key, at netip.AddrPort) int {
	return v.state.inputs.Ramps.At(balancer.DrainKey{Frontend: key, Backend: at}).Percent()
}

// health sums up what checks find.
func (v *view) health() (n api.HealthCount) {
	n.Checked = v.state.checked.Len()
	for target := range v.state.checked.Keys() {
		switch v.state.inputs.Health.At(target) {
		case balancer.HealthDown:
			n.Down++
		case balancer.HealthUnknown:
			n.Unknown++
		}
	}
	for _, of := range v.state.desired.Problems.All() {
		for i := range *of {
			if p := &(*of)[i]; panics(p) && !slices.Contains(n.Panic, p.Service) {
				n.Panic = append(n.Panic, p.Service)
			}
		}
	}
	return n
}
