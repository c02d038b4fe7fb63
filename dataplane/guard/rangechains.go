package guard

import (
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// newInRange returns the layout for frontends with a port range.
func (l *layout) newInRange() *layout {
	r := &layout{table: l.table, place: nft.Concat{nft.Daddr, nft.L4proto, nft.Priority}, sets: map[string]*nft.Set{}}
	for _, def := range setDefs() {
		s := l.sets[def.name]
		switch def.key {
		case byPlace:
			s = &nft.Set{Name: "range-" + s.Name, Key: r.place}
		case byClients:
			s = &nft.Set{Name: "range-" + s.Name, Key: append(r.place[:3:3], nft.Saddr), Interval: true}
		case behind:
			s = &nft.Set{Name: "range-" + s.Name, Key: append(r.place[:3:3], nft.Saddr)}
		}
		r.sets[def.name] = s
	}
	r.limits, r.full = newLimitsMap("range-limits", r.place), l.full
	return r
}

// setOf returns the set that holds an entry. Port ranges have separate sets.
func (l *layout) setOf(name string, e setEntry) *nft.Set {
	if e.Port.IsRange() {
		return l.inRange.sets[name]
	}
	return l.sets[name]
}

// toRange returns a rule that matches packets to the open ports of ranges. It stores the range's
// number in the packet's priority, and sends the packet to a chain.
func (l *layout) toRange(chain nft.Stmt) nft.Rule {
	return rule(nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: l.place, In: l.ranges}}, chain)
}

// rangeChains returns the chains for packets to port ranges.
func (l *layout) rangeChains(m dataplane.Needs, bits markBits, with features) []chainRules {
	if !with.ranges {
		return nil
	}
	r := l.inRange
	done := rule(nft.ClearPriority{})
	in := r.classifyRules(m, bits, with, "ranges-arriving")
	out := append(r.classifyRules(m, bits, with, "ranges-policy"), r.refuseOwnRules(bits, with)...)
	return []chainRules{
		{nft.Chain{Name: "ranges-policy"}, append(r.policyRules(m, bits, with), done)},
		{nft.Chain{Name: "ranges-arriving"}, r.admissionRules(with, "ranges-policy")},
		{nft.Chain{Name: "ranges-in"}, append(in, done)},
		{nft.Chain{Name: "ranges-out"}, append(out, done)},
		{nft.Chain{Name: "ranges-rejected"}, []nft.Rule{r.matchPlace(rejectedSet, nft.Goto("refuse-now")), done}},
		{nft.Chain{Name: "ranges-served"}, append(r.servedRules(m), done)},
	}
}
