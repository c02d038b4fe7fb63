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

// nextExpiry returns when the next one lapses; zero: none does.
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

// Say returns them with one target's override changed by what is asked; defined are the endpoints that it names. What is said of an address
// replaces what was said of its ports.
func (o Overrides) Say(t balancer.Target, change balancer.Override, defined []*balancer.Endpoint) Overrides {
	var old, wide balancer.Override
	if v := o.At(t); v != nil {
		old = *v
	}
	if t.Port == 0 {
		o = o.widen(t, change)
	} else if v := o.At(balancer.Target{Service: t.Service, Addr: t.Addr}); v != nil {
		wide = *v
	}
	return o.put(t, change.Over(old, wide, defined))
}

// widen takes back what was said of single ports of an address, as far as change now says it of all.
func (o Overrides) widen(t balancer.Target, change balancer.Override) Overrides {
	for at, v := range o.From(t) {
		if at.Service != t.Service || at.Addr != t.Addr {
			break
		}
		if at.Port != 0 {
			o = o.put(at, v.Under(change))
		}
	}
	return o
}

// put keeps v for t; nil: nothing.
func (o Overrides) put(t balancer.Target, v *balancer.Override) Overrides {
	if v == nil {
		o.Map = o.Delete(t)
	} else {
		o.Map = o.Set(t, v)
	}
	return o
}
