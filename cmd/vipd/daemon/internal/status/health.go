package status

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/fleetchecks"
	"vipd/dataplane/probe"
)

// checkOf returns a target's check result, or nil if there is no result.
func (v *View) checkOf(s *balancer.Service, t balancer.Target) *api.Check {
	if s.Health == nil {
		return nil
	}
	found := v.from.Checks.StateOf(t)
	switch {
	case !found.Checked && !found.Shared:
		return nil
	case found.Shared:
		return v.fleetCheckOf(s, t, found.Own, found.Fleet)
	}
	return v.ownCheckOf(s, found.Own)
}

// fleetCheckOf returns the fleet's result for a target. If this node checks the target, it includes
// this node's result.
func (v *View) fleetCheckOf(s *balancer.Service, t balancer.Target, own probe.Status, standing quorum.Tally) *api.Check {
	c := v.ownCheckOf(s, own)
	c.At = v.State.Checked.At(t).At.String()
	c.Fleet = &api.FleetCheck{Alone: standing.Alone, Checkers: standing.Checkers, Votes: standing.Votes}
	c.Since = standing.Since
	if standing.Alone {
		return c
	}
	c.Against, c.Last = 0, time.Time{}
	switch standing.Verdict {
	case balancer.HealthUp:
		c.LastOutcome = string(health.Passed)
	case balancer.HealthDown:
		c.LastOutcome = string(health.Failed)
	default:
		c.LastOutcome = ""
	}
	c.LastText, c.Fleet.Here = standing.Text(), fleetchecks.Otherwise(balancer.NodeName(v.from.Config.Node), &standing)
	return c
}

func (v *View) ownCheckOf(s *balancer.Service, status probe.Status) *api.Check {
	state, h := &status.State, cmp.Or(status.Health, s.Health)
	c := &api.Check{
		At: status.At.String(), Type: h.Type, Since: state.Since, Against: state.Streak, Needed: h.Fall, Next: state.Due,
		Checking: status.Checking,
	}
	if state.Verdict == balancer.HealthDown {
		c.Needed = h.Rise
	}
	if state.Last.Outcome != "" {
		c.Last = state.Last.Ended()
		c.LastOutcome = string(state.Last.Outcome)
		c.LastText = state.Last.Text
	}
	if v.Watched {
		c.Last = time.Time{}
		c.Next = time.Time{}
		c.Checking = false
	}
	for _, of := range status.Checks {
		one := v.ownCheckOf(s, of)
		one.Verdict = of.State.Verdict
		c.Checks = append(c.Checks, *one)
	}
	return c
}

// unchecked returns the reason why an endpoint is not checked on this node or, as far as this node
// knows, on other nodes. It returns "" if the endpoint is checked, or if the service has no check.
func (v *View) unchecked(s *balancer.Service, t balancer.Target) string {
	var field, path string
	if slices.ContainsFunc(s.Checks(), func(h *balancer.Health) bool { return h.CAFile != "" || h.CertFile != "" || h.KeyFile != "" }) {
		field, path = v.State.Env.RefusedFile(s)
	}
	switch subject, wanted := v.State.Checked.Get(t); {
	case s.Health == nil:
		return ""
	case field != "":
		return fmt.Sprintf("%s = %q is not in health.tls_dir", field, path)
	case balancer.WantsUser(s):
		return "programs from etcd may run only as " + balancer.ExecUser
	case s.RunsProgram() && !v.State.Env.AllowExec && s.Origin.Key != "" && (!wanted || !subject.Fleet):
		return "health.allow_exec is false here"
	case !wanted && v.usedAt(s, t.Addr) == nil:
		if t.Addr.IsLoopback() || t.Addr.IsLinkLocalUnicast() {
			return "endpoints from etcd with a loopback or link-local address are not used here"
		}
		return "the service has too many endpoints, so this endpoint is not used"
	case !wanted && v.usedAt(s, t.Addr).IsUnchecked():
		return `its definition has health = "none"`
	case !wanted:
		return fmt.Sprintf("a %s check can't test the ports of this service: set health.port to a port that it can test", s.Health.Type)
	}
	return ""
}

// usedAt returns the endpoint of s at the address a, or nil if this node does not use it. It caches
// the endpoints of one service, because callers ask for all endpoints of a service in sequence.
func (v *View) usedAt(s *balancer.Service, a netip.Addr) *balancer.Endpoint {
	if v.usedOf != s {
		v.usedOf, v.used = s, map[netip.Addr]*balancer.Endpoint{}
		for _, e := range balancer.UsedEndpoints(&v.State.Env, s, &v.State.Inputs) {
			v.used[e.Address] = e
		}
	}
	return v.used[a]
}

// ramp returns the percentage of its weight that a backend has during its slow start, or 0.
func (v *View) ramp(key balancer.Key, at netip.AddrPort) int {
	return v.State.Inputs.Ramps.At(balancer.BackendKey{Frontend: key, Backend: at}).Percent()
}

// checkedOf returns how many of a service's endpoints have a check on one of their ports.
func (v *View) checkedOf(s *balancer.Service, endpoints []*balancer.Endpoint) (n int) {
	if s.Health == nil {
		return 0
	}
	for _, e := range endpoints {
		if slices.ContainsFunc(s.Ports, func(p balancer.Port) bool {
			return v.State.Checked.Has(balancer.Target{Service: s.Name, Addr: e.Address, Port: e.TargetPort(&p)})
		}) {
			n++
		}
	}
	return n
}

// health summarizes the checks. The argument endpoints is the number of checked endpoints.
func (v *View) health(endpoints int) (n api.HealthCount) {
	n.Endpoints = endpoints
	n.Checked, n.Unable = v.State.Checked.Len(), v.State.Unable
	down := map[balancer.Name]bool{}
	for target := range v.State.Checked.Keys() {
		switch v.State.Inputs.Health.At(target) {
		case balancer.HealthDown:
			n.Down++
			down[target.Service] = true
		case balancer.HealthUnknown:
			n.Unknown++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(down)) {
		if s := v.State.Snapshot.Services.At(name); s != nil {
			n.Services = append(n.Services, api.ServiceHealth{Service: name, Ports: v.healthPerPort(s)})
		}
	}
	for _, of := range v.State.Desired.Problems.All() {
		for i := range *of {
			switch p := &(*of)[i]; p.Kind {
			case balancer.InPanic:
				n.Panic = append(n.Panic, p.Service)
			case balancer.Outage:
				n.Out = append(n.Out, p.Service)
			}
		}
	}
	n.Panic, n.Out = slices.Compact(n.Panic), slices.Compact(n.Out) // entries for ports are merged into one entry for the service
	return n
}

// healthPerPort returns two counts for each port of a service: the checked endpoints that are not
// down, and all checked endpoints.
func (v *View) healthPerPort(s *balancer.Service) (ports api.Use) {
	endpoints := balancer.EndpointsOf(s, &v.State.Inputs)
	for i := range s.Ports {
		p, counted := &s.Ports[i], map[balancer.Target]bool{}
		for _, e := range endpoints {
			t := balancer.Target{Service: s.Name, Addr: e.Address, Port: e.TargetPort(p)}
			if !counted[t] && v.State.Checked.Has(t) {
				counted[t] = true
				ports.Count(p.Name, v.State.Inputs.Health.At(t) != balancer.HealthDown)
			}
		}
	}
	return ports
}
