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

// drainsOpen are the endpoints that drain: in how many frontends, and since when.
type drainsOpen map[balancer.Target]openDrain

type openDrain struct {
	frontends int
	since     time.Time
}

// next records the drains that begin and end from before to what s wants, at a cost of what has changed. It returns the service of
// each that begins.
func (o *drainsOpen) next(j *events.History, s *model.State, before balancer.Desired, now time.Time) (begun []balancer.Name) {
	if *o == nil {
		*o = drainsOpen{}
	}
	more, is := drainsBetween(before, s.Desired)
	for _, t := range slices.SortedFunc(maps.Keys(more), balancer.Target.Compare) {
		d := (*o)[t]
		was := d.frontends
		d.frontends += more[t]
		e := events.Event{Kind: events.Drain, Service: t.Service, Endpoint: t.Address()}
		switch {
		case was == 0 && d.frontends > 0:
			d.since = now
			begun = append(begun, t.Service)
			e.Text, e.Cause = drainBegins(t, is[t], s, now)
		case was > 0 && d.frontends == 0:
			e.Text, e.Lasted = drainEnds(is, t), now.Sub(d.since)
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

// drainsBetween returns in how many frontends more each endpoint drains (negative: fewer), of those whose frontends have changed,
// and how these endpoints are now: where they differ from frontend to frontend, as one that drains.
func drainsBetween(before, after balancer.Desired) (more map[balancer.Target]int, is map[balancer.Target]balancer.Backend) {
	more, is = map[balancer.Target]int{}, map[balancer.Target]balancer.Backend{}
	for _, c := range snap.Diff(before.Frontends, after.Frontends) {
		if c.HadOld {
			for _, b := range c.Old.Backends {
				if b.Drains() {
					more[c.Old.Target(b)]--
				}
			}
		}
		if !c.HasNew {
			continue
		}
		for _, b := range c.New.Backends {
			t := c.New.Target(b)
			if b.Drains() {
				more[t]++
			}
			if known, ok := is[t]; !ok || !known.Drains() {
				is[t] = b
			}
		}
	}
	return more, is
}

// drainBegins says that the endpoint at t drains, and why.
func drainBegins(t balancer.Target, b balancer.Backend, s *model.State, now time.Time) (text, cause string) {
	text = "drains"
	switch left := b.Until.Sub(now); {
	case b.Until.IsZero():
	case left > 0:
		text += ", for " + left.Round(time.Second).String() + " at most"
	default: // as after a start later than that
		text += "; its time is over"
	}
	o := balancer.OverrideOf(&s.Inputs, t)
	switch {
	case b.State == balancer.Removed:
		return text, "its service no longer has it"
	case o == nil || o.Draining == nil:
		return text, "its definition says so"
	}
	_, by := o.Signatures()
	return text, saidBy(by)
}

// drainEnds says what the endpoint at t is now that it does not drain any more.
func drainEnds(is map[balancer.Target]balancer.Backend, t balancer.Target) string {
	switch b, there := is[t]; {
	case !there:
		return "is gone: its time to drain is over, and connections that it had left are cut"
	case b.State == balancer.Active:
		return "drains no longer, and gets new connections"
	default:
		return "drains no longer, but gets no new connections: it is " + string(b.State)
	}
}
