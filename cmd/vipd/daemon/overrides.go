package daemon

import (
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// overrides are what operators said by hand on this node.
type overrides struct {
	snap.Map[balancer.Target, *balancer.Override]
}

// expire drops those whose time is over.
func (o overrides) expire(now time.Time) overrides {
	for t, v := range o.All() {
		if !v.Expires.IsZero() && !v.Expires.After(now) {
			o.Map = o.Delete(t)
		}
	}
	return o
}

// nextExpiry returns when the next one lapses; zero: none does.
func (o overrides) nextExpiry() time.Time {
	var next time.Time
	for _, v := range o.All() {
		if !v.Expires.IsZero() && (next.IsZero() || v.Expires.Before(next)) {
			next = v.Expires
		}
	}
	return next
}

// over lays the local overrides over those of the store: what is said here wins here.
func (o overrides) over(stored snap.Map[balancer.Target, *balancer.Override]) snap.Map[balancer.Target, *balancer.Override] {
	for t, v := range o.All() {
		stored = stored.Set(t, v)
	}
	return stored
}

// set changes one target's override by what is asked. What then only repeats the endpoints' definition is dropped, and
// an override that says nothing any more with it.
func (o overrides) set(t balancer.Target, change balancer.Override, defined []*balancer.Endpoint) overrides {
	next := change
	if old := o.At(t); old != nil {
		if next.Weight == nil {
			next.Weight = old.Weight
		}
		if next.Draining == nil {
			next.Draining, next.Until = old.Draining, old.Until
		}
	}
	every := func(is func(*balancer.Endpoint) bool) bool {
		return !slices.ContainsFunc(defined, func(e *balancer.Endpoint) bool { return !is(e) })
	}
	if next.Weight != nil && every(func(e *balancer.Endpoint) bool { return e.Weight == *next.Weight }) {
		next.Weight = nil
	}
	if next.Draining != nil && !*next.Draining {
		next.Until = time.Time{}
		if every(func(e *balancer.Endpoint) bool { return !e.Draining }) {
			next.Draining = nil
		}
	}
	if next.Draining == nil && next.Weight == nil {
		o.Map = o.Delete(t)
		return o
	}
	o.Map = o.Set(t, &next)
	return o
}
