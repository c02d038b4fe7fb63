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
// an override that says nothing any more with it. What is said of an address replaces what was said of its ports.
func (o overrides) set(t balancer.Target, change balancer.Override, defined []*balancer.Endpoint) overrides {
	wide := &balancer.Override{}
	if t.Port == 0 {
		o = o.widen(t, change)
	} else if w := o.At(balancer.Target{Service: t.Service, Addr: t.Addr}); w != nil {
		wide = w
	}
	next := change
	if old := o.At(t); old != nil {
		next = join(change, *old)
	}
	every := func(is func(*balancer.Endpoint) bool) bool {
		return !slices.ContainsFunc(defined, func(e *balancer.Endpoint) bool { return !is(e) })
	}
	if next.Weight != nil && wide.Weight == nil && every(func(e *balancer.Endpoint) bool { return e.Weight == *next.Weight }) {
		next.Weight = nil
	}
	if next.Draining != nil && !*next.Draining {
		next.Until = time.Time{}
		if wide.Draining == nil && every(func(e *balancer.Endpoint) bool { return !e.Draining }) {
			next.Draining = nil
		}
	}
	return o.put(t, next)
}

// join returns change with what it leaves open taken from old.
func join(change, old balancer.Override) balancer.Override {
	if change.Weight == nil {
		change.Weight = old.Weight
	}
	if change.Draining == nil {
		change.Draining, change.Until = old.Draining, old.Until
	}
	return change
}

// widen takes back what was said of single ports of an address, as far as change now says it of all.
func (o overrides) widen(t balancer.Target, change balancer.Override) overrides {
	for at, v := range o.From(t) {
		if at.Service != t.Service || at.Addr != t.Addr {
			break
		}
		if at.Port == 0 {
			continue
		}
		rest := *v
		if change.Weight != nil {
			rest.Weight = nil
		}
		if change.Draining != nil {
			rest.Draining, rest.Until = nil, time.Time{}
		}
		o = o.put(at, rest)
	}
	return o
}

// put keeps v for t, unless it says nothing.
func (o overrides) put(t balancer.Target, v balancer.Override) overrides {
	if v.Draining == nil && v.Weight == nil {
		o.Map = o.Delete(t)
		return o
	}
	o.Map = o.Set(t, &v)
	return o
}
