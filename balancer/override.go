package balancer

import (
	"slices"
	"time"

	"vipd/balancer/snap"
)

// TakenBack is the Weight of a change that takes a weight back which was set by hand. No override that is kept has it.
const TakenBack = -1

// OverrideEdit is what becomes of the override of Target: Next returns it, given what it was (the zero value: nothing). It is nil
// if nothing is said any more.
type OverrideEdit struct {
	Target Target
	Next   func(old Override) *Override
}

// OverrideEdits returns what a change of t does to all overrides, to that of t first: what is said of an address replaces what
// was said of its ports. Defined are the endpoints that t names.
func OverrideEdits(all snap.Map[Target, *Override], t Target, change Override, defined []*Endpoint) []OverrideEdit {
	var wide Override
	if t.Port != 0 {
		if w := all.At(Target{Service: t.Service, Addr: t.Addr}); w != nil {
			wide = *w
		}
	}
	edits := []OverrideEdit{{t, func(old Override) *Override { return change.Over(old, wide, defined) }}}
	if t.Port != 0 {
		return edits
	}
	for at := range all.From(t) {
		if at.Service != t.Service || at.Addr != t.Addr {
			break
		}
		if at != t {
			edits = append(edits, OverrideEdit{at, func(old Override) *Override { return old.Under(change) }})
		}
	}
	return edits
}

// Over returns what is said of a target once o is said after old: o, with what it leaves open taken from old, and without
// what only repeats the definition of the endpoints that the target names, unless wide says otherwise: what is said of the
// address as a whole, where the target is one port of it. It is nil if nothing is said any more.
func (o Override) Over(old, wide Override, defined []*Endpoint) *Override {
	switch {
	case o.Weight == nil:
		o.Weight = old.Weight
	case *o.Weight == TakenBack:
		o.Weight = nil
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

// Note returns what o leaves behind for a while when it takes old back: who did it, and why. It is nil if there was nothing
// to take back, or if o is not signed. An earlier note stays.
func (o Override) Note(old Override) *Override {
	note := Override{By: o.By, Reason: o.Reason}
	if !old.Says() {
		note = Override{By: old.By, Reason: old.Reason}
	}
	if note == (Override{}) {
		return nil
	}
	return &note
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

// Says reports whether an override sets anything. A nil one does not, nor does a Note.
func (o *Override) Says() bool { return o != nil && (o.Weight != nil || o.Draining != nil) }

// Effective returns the weight of an endpoint and whether it drains, where its definition has these: what o sets wins. A nil one sets nothing.
func (o *Override) Effective(weight int, draining bool) (int, bool) {
	if o != nil && o.Weight != nil {
		weight = *o.Weight
	}
	if o != nil && o.Draining != nil {
		draining = *o.Draining
	}
	return weight, draining
}

// Drains reports whether o drains its endpoint. A nil one does not.
func (o *Override) Drains() bool {
	_, drains := o.Effective(0, false)
	return drains
}

// saying is nil for an override that says nothing.
func (o Override) saying() *Override {
	if !o.Says() {
		return nil
	}
	return &o
}
