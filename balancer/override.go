package balancer

import (
	"cmp"
	"slices"
	"time"

	"vipd/balancer/snap"
)

// ResetWeight is the Weight of a change that removes the weight from an override. No stored
// override has this weight.
const ResetWeight = -1

// OverrideEdit changes the override of Target. Next receives the old override, or the zero value if
// there is none. It returns the new override, or nil to delete the override.
type OverrideEdit struct {
	Target Target
	Next   func(old Override) *Override
}

// OverrideEdits returns the edits that apply change to the target t. The first edit is for t
// itself. If t covers all ports of an address, the other edits remove the fields that change sets
// from the overrides of single ports. The list defined contains the endpoints that t matches, and
// hasAgent reports whether their service has an agent.
func OverrideEdits(all snap.Map[Target, *Override], t Target, change Override, defined []*Endpoint, hasAgent bool) []OverrideEdit {
	var wide Override
	if t.Port != 0 {
		if w := all.At(Target{Service: t.Service, Addr: t.Addr}); w != nil {
			wide = *w
		}
	}
	edits := []OverrideEdit{{t, func(old Override) *Override { return change.ChangedFrom(old, wide, defined, hasAgent) }}}
	if t.Port != 0 {
		return edits
	}
	for at := range all.While(t, func(at Target) bool { return at.Service == t.Service && at.Addr == t.Addr }) {
		if at != t {
			edits = append(edits, OverrideEdit{at, func(old Override) *Override { return old.ReplacedBy(change) }})
		}
	}
	return edits
}

// ChangedFrom returns a target's override after the change o to the override old. Fields that o
// does not set keep their old values. A field that equals the definition of all the target's
// endpoints is dropped, unless wide, the override for all ports of the address, sets it. If the
// service has an agent, such a field remains, because it overrides the agent's answer; then only
// the end of a drain is dropped. ChangedFrom returns nil if no field remains.
func (o Override) ChangedFrom(old, wide Override, defined []*Endpoint, hasAgent bool) *Override {
	weight := overridePart{o.Expires, Signature{o.By, o.Reason}}
	draining := weight
	oldWeight, oldDraining := old.parts()
	asked := o.Draining
	switch {
	case o.Weight == nil:
		o.Weight, weight = old.Weight, oldWeight
	case *o.Weight == ResetWeight:
		o.Weight = nil
	}
	if o.Draining == nil {
		o.Draining = old.Draining
		o.Until = old.Until
		draining = oldDraining
	}
	every := func(matches func(*Endpoint) bool) bool {
		return !slices.ContainsFunc(defined, func(e *Endpoint) bool { return !matches(e) })
	}
	if o.Weight != nil && wide.Weight == nil && !hasAgent && every(func(e *Endpoint) bool { return e.Weight == *o.Weight }) {
		o.Weight = nil
	}
	if o.Draining != nil && !*o.Draining {
		o.Until = time.Time{}
		kept := hasAgent && (asked == nil || old.Draining == nil || !*old.Draining)
		if wide.Draining == nil && !kept && every(func(e *Endpoint) bool { return !e.Draining }) {
			o.Draining = nil
		}
	}
	return o.withParts(weight, draining)
}

// Note returns a note: a temporary override that sets nothing, and records who made the change o
// and why. The change o removes the override old. If old is itself a note, Note returns an equal
// note. It returns nil if there is no author or reason to record.
func (o Override) Note(old Override) *Override {
	note := Override{By: o.By, Reason: o.Reason}
	if !old.IsSet() {
		note = Override{By: old.By, Reason: old.Reason}
	}
	if note == (Override{}) {
		return nil
	}
	return &note
}

// ReplacedBy returns the override of a single port that remains after wide, an override for all
// ports, is set. The fields that wide sets are removed. ReplacedBy returns nil if no field remains.
func (o Override) ReplacedBy(wide Override) *Override {
	weight, draining := o.parts()
	if wide.Weight != nil {
		o.Weight = nil
	}
	if wide.Draining != nil {
		o.Draining, o.Until = nil, time.Time{}
	}
	return o.withParts(weight, draining)
}

// Inherit returns o with its unset fields filled from shared, an override for all ports or for the
// fleet. Each field keeps its own expiry and signature.
func (o *Override) Inherit(shared *Override) *Override {
	if !shared.IsSet() || (o.Weight != nil || shared.Weight == nil) && (o.Draining != nil || shared.Draining == nil) {
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
	return both.withParts(weight, draining)
}

// Unexpired returns the part of o that has not expired. It returns o itself if no part has expired,
// and nil if all parts have expired.
func (o *Override) Unexpired(now time.Time) *Override {
	weight, draining := o.parts()
	lapsed := func(s overridePart) bool { return !s.expires.IsZero() && !s.expires.After(now) }
	if !lapsed(weight) && !lapsed(draining) {
		return o
	}
	remaining := *o
	if lapsed(weight) {
		remaining.Weight = nil
	}
	if lapsed(draining) {
		remaining.Draining, remaining.Until = nil, time.Time{}
	}
	return remaining.withParts(weight, draining)
}

// NextExpiry returns when the next part of o expires. Zero means never.
func (o *Override) NextExpiry() time.Time {
	weight, draining := o.Expiries()
	if before(weight, draining) {
		return weight
	}
	return draining
}

// Expiries returns when the weight and the draining flag expire. Zero means never, or that o does
// not set the field.
func (o *Override) Expiries() (weight, draining time.Time) {
	if o.Weight != nil {
		weight = cmp.Or(o.WeightExpires, o.Expires)
	}
	if o.Draining != nil {
		draining = cmp.Or(o.DrainingExpires, o.Expires)
	}
	return weight, draining
}

// Signature records who made a change, and why.
type Signature struct{ By, Reason string }

// Signatures returns the signatures of the weight and of the draining flag.
func (o *Override) Signatures() (weight, draining Signature) {
	all := Signature{o.By, o.Reason}
	return cmp.Or(Signature{o.WeightBy, o.WeightReason}, all), cmp.Or(Signature{o.DrainingBy, o.DrainingReason}, all)
}

// overridePart is the expiry and signature of a part of an override.
type overridePart struct {
	expires time.Time
	Signature
}

func (o *Override) parts() (weight, draining overridePart) {
	weight.expires, draining.expires = o.Expiries()
	weight.Signature, draining.Signature = o.Signatures()
	return weight, draining
}

// withParts returns o with other expiries and signatures, or nil if o sets no fields.
func (o Override) withParts(weight, draining overridePart) *Override {
	o.Expires = draining.expires
	o.WeightExpires = time.Time{}
	o.DrainingExpires = time.Time{}
	switch {
	case !o.IsSet():
		return nil
	case o.Draining == nil:
		o.Expires = weight.expires
	case o.Weight == nil:
	case before(weight.expires, draining.expires):
		o.WeightExpires = weight.expires
	case before(draining.expires, weight.expires):
		o.Expires, o.DrainingExpires = weight.expires, draining.expires
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

// before reports whether a is before b. A zero time means never, so it is after all others.
func before(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// IsSet reports whether an override sets anything. A nil override and a Note set nothing.
func (o *Override) IsSet() bool { return o != nil && (o.Weight != nil || o.Draining != nil) }

// Effective applies o to the weight and draining flag from an endpoint's definition. A nil o
// changes neither.
func (o *Override) Effective(weight int, draining bool) (int, bool) {
	if o != nil && o.Weight != nil {
		weight = *o.Weight
	}
	if o != nil && o.Draining != nil {
		draining = *o.Draining
	}
	return weight, draining
}

// Drains reports whether o drains its endpoint. A nil o does not.
func (o *Override) Drains() bool {
	_, drains := o.Effective(0, false)
	return drains
}
