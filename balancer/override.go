package balancer

import (
	"cmp"
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
	for at := range all.While(t, func(at Target) bool { return at.Service == t.Service && at.Addr == t.Addr }) {
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
	weight := said{o.Expires, Signature{o.By, o.Reason}}
	draining := weight
	was, drained := old.parts()
	switch {
	case o.Weight == nil:
		o.Weight, weight = old.Weight, was
	case *o.Weight == TakenBack:
		o.Weight = nil
	}
	if o.Draining == nil {
		o.Draining, o.Until, draining = old.Draining, old.Until, drained
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
	return o.ending(weight, draining)
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
	weight, draining := o.parts()
	if wide.Weight != nil {
		o.Weight = nil
	}
	if wide.Draining != nil {
		o.Draining, o.Until = nil, time.Time{}
	}
	return o.ending(weight, draining)
}

// Beside returns what holds where o is said, and shared is said more widely, of a whole address or by the fleet: o wins, and what it
// leaves open is as in shared, with its end there. It is signed by whoever has said whether to drain.
func (o *Override) Beside(shared *Override) *Override {
	if !shared.Says() || (o.Weight != nil || shared.Weight == nil) && (o.Draining != nil || shared.Draining == nil) {
		return o
	}
	both := *o
	if o.Draining == nil {
		both.By, both.Reason = shared.By, shared.Reason
	}
	weight, draining := o.parts()
	if o.Weight == nil {
		both.Weight = shared.Weight
		weight, _ = shared.parts()
	}
	if o.Draining == nil {
		both.Draining, both.Until = shared.Draining, shared.Until
		_, draining = shared.parts()
	}
	return both.ending(weight, draining)
}

// Lasting returns what o still says at a time: o itself if nothing of it has lapsed, nil if all has.
func (o *Override) Lasting(now time.Time) *Override {
	weight, draining := o.parts()
	lapsed := func(s said) bool { return !s.ends.IsZero() && !s.ends.After(now) }
	if !lapsed(weight) && !lapsed(draining) {
		return o
	}
	left := *o
	if lapsed(weight) {
		left.Weight = nil
	}
	if lapsed(draining) {
		left.Draining, left.Until = nil, time.Time{}
	}
	return left.ending(weight, draining)
}

// NextExpiry returns when the first of what o says lapses; zero is never.
func (o *Override) NextExpiry() time.Time {
	weight, draining := o.Ends()
	if sooner(weight, draining) {
		return weight
	}
	return draining
}

// Ends returns when what o says of the weight lapses, and what it says of draining; zero is never, and where it says nothing.
func (o *Override) Ends() (weight, draining time.Time) {
	if o.Weight != nil {
		weight = cmp.Or(o.WeightExpires, o.Expires)
	}
	if o.Draining != nil {
		draining = cmp.Or(o.DrainingExpires, o.Expires)
	}
	return weight, draining
}

// Signature is who said something, and why.
type Signature struct{ By, Reason string }

// Signed returns who has said what o says of the weight, and of draining.
func (o *Override) Signed() (weight, draining Signature) {
	all := Signature{o.By, o.Reason}
	return cmp.Or(Signature{o.WeightBy, o.WeightReason}, all), cmp.Or(Signature{o.DrainingBy, o.DrainingReason}, all)
}

// said is what goes with a part of an override: when it lapses, and who has said it.
type said struct {
	ends time.Time
	Signature
}

// parts are what goes with the weight, and with draining.
func (o *Override) parts() (weight, draining said) {
	weight.ends, draining.ends = o.Ends()
	weight.Signature, draining.Signature = o.Signed()
	return weight, draining
}

// ending is o, with what goes with the one and the other; nil if it says nothing.
func (o Override) ending(weight, draining said) *Override {
	o.Expires, o.WeightExpires, o.DrainingExpires = draining.ends, time.Time{}, time.Time{}
	switch {
	case !o.Says():
		return nil
	case o.Draining == nil:
		o.Expires = weight.ends
	case o.Weight == nil:
	case sooner(weight.ends, draining.ends):
		o.WeightExpires = weight.ends
	case sooner(draining.ends, weight.ends):
		o.Expires, o.DrainingExpires = weight.ends, draining.ends
	}
	all := Signature{o.By, o.Reason}
	if o.Weight == nil || weight.Signature == all {
		weight.Signature = Signature{}
	}
	if o.Draining == nil || draining.Signature == all {
		draining.Signature = Signature{}
	}
	o.WeightBy, o.WeightReason = weight.By, weight.Reason
	o.DrainingBy, o.DrainingReason = draining.By, draining.Reason
	return &o
}

// sooner reports whether a is before b, where zero is never.
func sooner(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

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
