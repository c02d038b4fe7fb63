package main

import (
	"fmt"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/cmd/internal/reserved"
)

// claimText names a claim.
func claimText(key balancer.Key) string {
	if !key.Addr.IsValid() {
		return fmt.Sprintf("node port %d/%s", key.Port, key.Proto)
	}
	return key.String()
}

// contest is a claim that another service has as well.
type contest struct {
	intent *intent
	key    balancer.Key
	field  string
	other  *balancer.Service
	// isNew: the change of the intent brings it about.
	isNew bool
}

// problem is an error if the change brings the contest about, and a warning if it was there before.
func (c contest) problem() balancer.Problem {
	p := c.intent.problem(c.field, "%s is claimed by service %s (%s): choose another address or port", claimText(c.key), c.other.Name, origin(c.other.Origin))
	p.Kind = balancer.Held
	if !c.isNew {
		p.Severity = balancer.SeverityWarning
		p.Text = fmt.Sprintf("%s is claimed by service %s as well (%s), as it was before", claimText(c.key), c.other.Name, origin(c.other.Origin))
	}
	return p
}

// contests finds what more than one service would claim after the changes. Each is told once, of the service whose
// change brings it about.
func contests(before map[balancer.Name]*balancer.Service, changes []*intent) (all []contest) {
	after := maps.Clone(before)
	changed := map[balancer.Name]bool{}
	for _, i := range changes {
		if i.What != unchangedService {
			changed[i.Name] = true
			after[i.Name] = i.service
		}
	}
	claimants := map[balancer.Key][]balancer.Name{}
	for name, s := range after {
		for key := range s.Claims() {
			claimants[key] = append(claimants[key], name)
		}
	}
	had := map[balancer.Name]map[balancer.Key]string{}
	claimed := func(name balancer.Name, key balancer.Key) bool {
		if had[name] == nil {
			had[name] = before[name].Claims()
		}
		_, is := had[name][key]
		return is
	}
	for _, i := range changes {
		if !changed[i.Name] {
			continue
		}
		wants := i.service.Claims()
		for _, key := range slices.SortedFunc(maps.Keys(wants), balancer.Key.Compare) {
			isNew := !claimed(i.Name, key)
			for _, other := range slices.Sorted(slices.Values(claimants[key])) {
				otherIsNew := changed[other] && !claimed(other, key)
				if other == i.Name || otherIsNew && (!isNew || other > i.Name) {
					continue // the other one is told
				}
				all = append(all, contest{i, key, wants[key], after[other], isNew})
			}
		}
	}
	return all
}

// untrusted are what hosts will not do for a service from etcd, by the law that they go by.
func (e *edit) untrusted(i *intent) (problems []balancer.Problem) {
	problems = balancer.Untrusted(i.service, reserved.New(reserved.Options{Endpoints: e.fleet.members}).All())
	for n := range problems {
		problems[n].Origin = i.place(problems[n].Field)
	}
	return problems
}
