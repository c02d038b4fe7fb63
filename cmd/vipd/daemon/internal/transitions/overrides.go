package transitions

import (
	"fmt"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/store/etcd/schema"
)

// OverrideEvents returns the events for a changed override of a target. It returns one event with
// the author for each setting that was added, changed or removed. It returns nil if nothing has
// changed.
func OverrideEvents(t balancer.Target, was, is *balancer.Override, now time.Time) (out []events.Event) {
	var old, next balancer.Override
	if was != nil {
		old = *was
	}
	if is != nil {
		next = *is
	}
	add := func(text string, by balancer.Signature) {
		out = append(out, events.Event{
			Kind: events.Override, Service: t.Service, Endpoint: t.Address(), Text: text + signature(by.By), Cause: by.Reason,
		})
	}
	weight, draining := next.Expiries()
	weigher, drainer := next.Signatures()
	if w, o := next.Weight, old.Weight; w != nil && (o == nil || *o != *w) {
		add(fmt.Sprintf("weight set to %d", *w)+lasting(weight, now), weigher)
	} else if w == nil && o != nil {
		add(fmt.Sprintf("weight %d removed", *o), weigher)
	}
	drains, drained := next.Draining, old.Draining
	switch {
	case drains != nil && *drains && (drained == nil || !*drained):
		add("drained"+lasting(draining, now), drainer)
	case drained != nil && *drained && (drains == nil || !*drains), drains != nil && drained == nil:
		add("undrained"+lasting(draining, now), drainer)
	case drained != nil && drains == nil:
		add("undrain removed", drainer)
	}
	if end, yes := renewed(old, next); yes && len(out) == 0 && is.IsSet() {
		add("override renewed"+lasting(end, now), balancer.Signature{By: next.By, Reason: next.Reason})
	}
	return out
}

// renewed reports whether two overrides with the same settings differ in their expiry, author or
// reason. The result end is when the first such setting of b expires.
func renewed(a, b balancer.Override) (end time.Time, yes bool) {
	weight, draining := a.Expiries()
	lasts, drains := b.Expiries()
	switch {
	case !draining.Equal(drains):
		return drains, true
	case !weight.Equal(lasts):
		return lasts, true
	}
	weighed, drained := a.Signatures()
	weighs, drain := b.Signatures()
	return b.Expires, weighed != weighs || drained != drain || !a.Until.Equal(b.Until)
}

// signature returns " by NAME", or " manually" if the name is unknown.
func signature(by string) string {
	if by == "" {
		return " manually"
	}
	return " by " + by
}

// lasting returns " for TIME" if the override expires.
func lasting(end, now time.Time) string {
	if end.IsZero() {
		return ""
	}
	return " for " + end.Sub(now).Round(time.Second).String()
}

// recordOverrides records changed overrides in etcd, and the expiry of this node's own overrides.
// Requests record other changes to own overrides themselves.
func (r *Tracker) recordOverrides(before, after snap.Map[balancer.Target, *balancer.Override], local bool, now time.Time) {
	for t, c := range snap.Diff(before, after) {
		var out []events.Event
		if text, by := expired(c, now); text != "" {
			out = []events.Event{{Kind: events.Override, Service: t.Service, Endpoint: t.Address(), Text: text + " has expired", Cause: authorText(by)}}
		} else if !local {
			out = OverrideEvents(t, c.Old, c.New, now)
		}
		for _, e := range out {
			e.At = now
			r.o.Events.Record(e)
		}
	}
}

// expired returns the settings of an override that have expired, and their author. If the change is
// not an expiry, it returns "".
func expired(c snap.Change[*balancer.Override], now time.Time) (settings string, by balancer.Signature) {
	if !c.Old.IsSet() {
		return "", by
	}
	weight, draining := c.Old.Signatures()
	switch left := c.Old.Unexpired(now); {
	case left == nil && !c.HasNew && c.Old.Draining == nil:
		return "override", weight
	case left == nil && !c.HasNew:
		return "override", draining
	case left == nil || left == c.Old || !c.HasNew || *left != *c.New:
		return "", by
	case c.Old.Weight != nil && left.Weight == nil:
		return fmt.Sprintf("weight %d", *c.Old.Weight), weight
	case *c.Old.Draining:
		return "drain", draining
	}
	return "undrain", draining
}

// authorText names the author of an override, and the reason.
func authorText(by balancer.Signature) string {
	text := "said" + signature(by.By)
	if by.Reason != "" {
		text += ": " + by.Reason
	}
	return text
}

// NodeSet returns the events for a change to this node's configuration in etcd.
func NodeSet(was, now schema.NodeConfig) (out []events.Event) {
	add := func(text string) {
		out = append(out, events.Event{Kind: events.Override, Text: "node: " + text + signature(now.By), Cause: now.Reason})
	}
	for _, field := range []struct{ name, was, is string }{{"mode", was.Mode, now.Mode}, {"zone", was.Zone, now.Zone}} {
		switch field.is {
		case field.was:
		case "":
			add(field.name + " " + field.was + " removed")
		default:
			add(field.name + " set to " + field.is)
		}
	}
	switch {
	case now.Standby && !was.Standby:
		add("put on standby")
	case was.Standby && !now.Standby:
		add("standby ended")
	}
	return out
}
