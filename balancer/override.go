package balancer

import (
	"slices"
	"time"
)

// Over returns what is said of a target once o is said after old: o, with what it leaves open taken from old, and without
// what only repeats the definition of the endpoints that the target names, unless wide says otherwise: what is said of the
// address as a whole, where the target is one port of it. It is nil if nothing is said any more.
func (o Override) Over(old, wide Override, defined []*Endpoint) *Override {
	if o.Weight == nil {
		o.Weight = old.Weight
	}
	if o.Draining == nil {
		o.Draining, o.Until = old.Draining, old.Until
	}
	every := func(is func(*Endpoint) bool) bool {
		return !slices.ContainsFunc(defined, func(e *Endpoint) bool { return !is(e) })
	}
	if o.Weight != nil && wide.Weight == nil && every(func(e *Endpoint) bool { return e.Weight == *o.Weight }) {
		o.Weight = nil
	}
	if o.Draining != nil && !*o.Draining {
		o.Until = time.Time{}
		if wide.Draining == nil && every(func(e *Endpoint) bool { return !e.Draining }) {
			o.Draining = nil
		}
	}
	return o.saying()
}

// Under returns what stays said of one port of an address, where wide is then said of the address as a whole: that
// replaces what it speaks of. It is nil if nothing is said any more.
func (o Override) Under(wide Override) *Override {
	if wide.Weight != nil {
		o.Weight = nil
	}
	if wide.Draining != nil {
		o.Draining, o.Until = nil, time.Time{}
	}
	return o.saying()
}

// Lapsed reports whether o says nothing any more, at a time.
func (o *Override) Lapsed(now time.Time) bool { return !o.Expires.IsZero() && !o.Expires.After(now) }

// saying is nil for an override that says nothing.
func (o Override) saying() *Override {
	if o.Weight == nil && o.Draining == nil {
		return nil
	}
	return &o
}
