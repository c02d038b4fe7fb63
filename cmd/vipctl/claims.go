package main

import (
	"fmt"
	"maps"
	"slices"

	"vipd/balancer"
)

func claimText(key balancer.Key) string {
	if !key.Addr.IsValid() {
		return fmt.Sprintf("node port %d/%s", key.Port, key.Proto)
	}
	return key.String()
}

// mostTold is how many other services are named that have a claim as well: naming all would make n*n/2 problems of n services
// with the same address and port.
const mostTold = 8

// contest is a claim that another service has as well.
type contest struct {
	intent *intent
	key    balancer.Key
	field  string
	other  *balancer.Service
	// more is how many other services have the claim besides those that are named; the last contest of a claim has it.
	more int
	// isNew: the change of the intent brings it about.
	isNew bool
}

// problem is an error if the change brings the contest about, and a warning if it was there before.
func (c contest) problem() balancer.Problem {
	more := ""
	if c.more > 0 {
		more = fmt.Sprintf(" and %d more", c.more)
	}
	p := c.intent.problem(c.field, "%s is claimed by service %s (%s)%s: choose another address or port", claimText(c.key), c.other.Name, origin(c.other.Origin), more)
	p.Kind = balancer.Held
	if !c.isNew {
		p.Severity = balancer.SeverityWarning
		p.Text = fmt.Sprintf("%s is claimed by service %s as well (%s)%s, as it was before", claimText(c.key), c.other.Name, origin(c.other.Origin), more)
	}
	return p
}

// claimants are the services that have a claim after some changes, by name: those that had it before, and those whose change
// brings it about.
type claimants struct{ old, added []balancer.Name }

// contests finds what more than one service would claim after the changes. Each is told once, of the service whose
// change brings it about; of many others, mostTold are named.
func contests(before map[balancer.Name]*balancer.Service, changes []*intent) (all []contest) {
	after := maps.Clone(before)
	changed := map[balancer.Name]bool{}
	for _, i := range changes {
		if i.What != unchangedService {
			changed[i.Name] = true
			after[i.Name] = i.service
		}
	}
	of := map[balancer.Key]claimants{}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		claims := after[name].Claims()
		had := claims
		if changed[name] {
			had = before[name].Claims()
		}
		for key := range claims {
			c := of[key]
			if _, is := had[key]; is {
				c.old = append(c.old, name)
			} else {
				c.added = append(c.added, name)
			}
			of[key] = c
		}
	}
	for _, i := range changes {
		if !changed[i.Name] {
			continue
		}
		wants := i.service.Claims()
		for _, key := range slices.SortedFunc(maps.Keys(wants), balancer.Key.Compare) {
			others, more, isNew := of[key].besides(i.Name)
			for _, other := range others {
				all = append(all, contest{intent: i, key: key, field: wants[key], other: after[other], isNew: isNew})
			}
			if more > 0 {
				all[len(all)-1].more = more
			}
		}
	}
	return all
}

// besides returns the first of the services that one of them is told to share the claim with, how many more there are, and
// whether the change of that one brings its claim about. If so, it is told of those that had the claim and of those before it
// that are added; otherwise, only of the former.
func (c claimants) besides(name balancer.Name) (others []balancer.Name, more int, isNew bool) {
	n, isNew := slices.BinarySearch(c.added, name)
	total := len(c.old) + n
	if !isNew {
		n, total = 0, len(c.old)-1
	}
	others = slices.Concat(c.old[:min(len(c.old), mostTold+1)], c.added[:min(n, mostTold)])
	others = slices.DeleteFunc(others, func(other balancer.Name) bool { return other == name })
	others = others[:min(len(others), mostTold)]
	return others, total - len(others), isNew
}
