package model

import (
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Overrides are what operators said by hand on this node.
type Overrides struct {
	snap.Map[balancer.Target, *balancer.Override]
}

// expire drops those whose time is over.
func (o Overrides) expire(now time.Time) Overrides {
	for t, v := range o.All() {
		if v.Lapsed(now) {
			o.Map = o.Delete(t)
		}
	}
	return o
}

// nextExpiry returns when the next one lapses; zero means none does.
func (o Overrides) nextExpiry() time.Time {
	var next time.Time
	for _, v := range o.All() {
		if !v.Expires.IsZero() && (next.IsZero() || v.Expires.Before(next)) {
			next = v.Expires
		}
	}
	return next
}

// over lays the local overrides over those of the store: what is said here wins here.
func (o Overrides) over(stored snap.Map[balancer.Target, *balancer.Override]) snap.Map[balancer.Target, *balancer.Override] {
	for t, v := range o.All() {
		stored = stored.Set(t, v)
	}
	return stored
}

// Say returns them changed by what is said of one target; defined are the endpoints that it names.
func (o Overrides) Say(t balancer.Target, change balancer.Override, defined []*balancer.Endpoint) Overrides {
	for _, e := range balancer.OverrideEdits(o.Map, t, change, defined) {
		var old balancer.Override
		if v := o.At(e.Target); v != nil {
			old = *v
		}
		if next := e.Next(old); next != nil {
			o.Map = o.Set(e.Target, next)
		} else {
			o.Map = o.Delete(e.Target)
		}
	}
	return o
}
