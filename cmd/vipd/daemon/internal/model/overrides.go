package model

import (
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Overrides are this node's manual overrides.
type Overrides struct {
	snap.Map[balancer.Target, *balancer.Override]
}

func (o Overrides) expire(now time.Time) Overrides {
	for t, v := range o.All() {
		switch left := v.Unexpired(now); left {
		case v:
		case nil:
			o.Map = o.Delete(t)
		default:
			o.Map = o.Set(t, left)
		}
	}
	return o
}

// nextExpiry returns the time of the next expiry, or zero.
func (o Overrides) nextExpiry() time.Time {
	var next time.Time
	for _, v := range o.All() {
		if at := v.NextExpiry(); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// over merges the local overrides into stored, the overrides in the store. Local overrides have
// precedence. An entry that equals an entry in last keeps its pointer.
func (o Overrides) over(stored, last snap.Map[balancer.Target, *balancer.Override]) snap.Map[balancer.Target, *balancer.Override] {
	for t, v := range o.All() {
		both := v.Inherit(stored.At(t))
		if was := last.At(t); was != nil && *was == *both {
			both = was
		}
		stored = stored.Set(t, both)
	}
	return stored
}

// Apply returns the overrides after a change to the override of a target. defined lists the
// endpoints that the target selects, and hasAgent reports whether their service has an agent.
func (o Overrides) Apply(t balancer.Target, change balancer.Override, defined []*balancer.Endpoint, hasAgent bool) Overrides {
	for _, e := range balancer.OverrideEdits(o.Map, t, change, defined, hasAgent) {
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
