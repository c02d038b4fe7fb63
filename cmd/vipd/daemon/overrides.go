package daemon

import (
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
		if v.Lapsed(now) {
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

// set changes one target's override by what is asked; defined are the endpoints that it names. What is said of an address
// replaces what was said of its ports.
func (o overrides) set(t balancer.Target, change balancer.Override, defined []*balancer.Endpoint) overrides {
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
func (o overrides) widen(t balancer.Target, change balancer.Override) overrides {
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
func (o overrides) put(t balancer.Target, v *balancer.Override) overrides {
	if v == nil {
		o.Map = o.Delete(t)
	} else {
		o.Map = o.Set(t, v)
	}
	return o
}
