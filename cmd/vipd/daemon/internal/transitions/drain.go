package transitions

import (
	"maps"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
)

// drainsOpen maps draining endpoints to the number of their frontends and the drain's start time.
type drainsOpen map[balancer.Target]openDrain

type openDrain struct {
	frontends int
	since     time.Time
}

// next records the drains that start and end between before and the desired state of s. It returns
// the service of each drain that starts. The cost is proportional to the number of changes.
func (o *drainsOpen) next(j *events.History, s *model.State, before balancer.Desired, now time.Time) (begun []balancer.Name) {
	if *o == nil {
		*o = drainsOpen{}
	}
	increase, states := drainsBetween(before, s.Desired)
	for _, t := range slices.SortedFunc(maps.Keys(increase), balancer.Target.Compare) {
		d := (*o)[t]
		was := d.frontends
		d.frontends += increase[t]
		e := events.Event{Kind: events.Drain, Service: t.Service, Endpoint: t.Address()}
		switch {
		case was == 0 && d.frontends > 0:
			d.since = now
			begun = append(begun, t.Service)
			e.Text, e.Cause = drainBegins(t, states[t], s, now)
		case was > 0 && d.frontends == 0:
			e.Text, e.Lasted = drainEnds(states, t), now.Sub(d.since)
		}
		if (*o)[t] = d; d.frontends == 0 {
			delete(*o, t)
		}
		if e.Text != "" {
			j.Record(e)
		}
	}
	return begun
}

// drainsBetween compares the frontends that have changed. increase is the change in the number of
// frontends on which an endpoint drains, which may be negative. states holds the current state of
// each endpoint. If an endpoint's states differ between frontends, it counts as draining.
func drainsBetween(before, after balancer.Desired) (increase map[balancer.Target]int, states map[balancer.Target]balancer.Backend) {
	increase, states = map[balancer.Target]int{}, map[balancer.Target]balancer.Backend{}
	for _, c := range snap.Diff(before.Frontends, after.Frontends) {
		if c.HadOld {
			for _, b := range c.Old.Backends {
				if b.Drains() {
					increase[c.Old.Target(b)]--
				}
			}
		}
		if !c.HasNew {
			continue
		}
		for _, b := range c.New.Backends {
			t := c.New.Target(b)
			if b.Drains() {
				increase[t]++
			}
			if known, ok := states[t]; !ok || !known.Drains() {
				states[t] = b
			}
		}
	}
	return increase, states
}

// drainBegins describes the start of the drain of the endpoint at t, and its cause.
func drainBegins(t balancer.Target, b balancer.Backend, s *model.State, now time.Time) (text, cause string) {
	text = "drains"
	switch left := b.Until.Sub(now); {
	case b.Until.IsZero():
	case left > 0:
		text += ", for " + left.Round(time.Second).String() + " at most"
	default: // reached, for example, if vipd starts after the drain's deadline
		text += "; its deadline has passed"
	}
	o := balancer.OverrideOf(&s.Inputs, t)
	switch {
	case b.State == balancer.Removed:
		return text, "its service no longer lists it"
	case (o == nil || o.Draining == nil) && s.Inputs.Agents.At(t).Drained:
		return text, "requested by its agent"
	case o == nil || o.Draining == nil:
		return text, "requested by its definition"
	}
	_, by := o.Signatures()
	return text, authorText(by)
}

// drainEnds describes the state of the endpoint at t after its drain.
func drainEnds(states map[balancer.Target]balancer.Backend, t balancer.Target) string {
	switch b, there := states[t]; {
	case !there:
		return "was removed: its drain time has passed, and its remaining connections are cut"
	case b.State == balancer.Active:
		return "no longer drains, and gets new connections"
	default:
		return "no longer drains, but gets no new connections: it is " + string(b.State)
	}
}
