package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
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

// same reports whether two contests are about the same key and services.
func (c contest) same(d contest) bool {
	return c.key == d.key && c.intent.Name == d.intent.Name && c.other.Name == d.other.Name
}

// problem is an error if the change brings the contest about, and a warning if it was there before.
func (c contest) problem() balancer.Problem {
	p := balancer.Problem{
		Severity: balancer.SeverityError, Origin: c.intent.place(c.field), Service: c.intent.Name, Field: c.field,
		Text: fmt.Sprintf("%s is claimed by service %s (%s): choose another address or port", claimText(c.key), c.other.Name, origin(c.other.Origin)),
	}
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

// doubts are what hosts do not do for services from etcd unless their configuration allows it.
func doubts(i *intent) (problems []balancer.Problem) {
	doubt := func(field, text string) {
		problems = append(problems, balancer.Problem{
			Severity: balancer.SeverityWarning, Origin: i.place(field), Service: i.Name, Field: field, Text: text,
		})
	}
	for n, vip := range i.service.VIPs {
		if vip.IsLoopback() || vip.IsLinkLocalUnicast() {
			doubt(fmt.Sprintf("vips[%d]", n), fmt.Sprintf("%s is served only by hosts whose addresses.allowed contains it", vip))
		}
	}
	for n, p := range i.service.Ports {
		if p.NodePort != 0 && p.NodePort < balancer.FirstNodePort {
			doubt(fmt.Sprintf("ports[%d].node_port", n), fmt.Sprintf("node port %d/%s, below %d, is opened only by hosts whose addresses.allowed contains their own addresses",
				p.NodePort, p.Protocol, balancer.FirstNodePort))
		}
	}
	here := !slices.ContainsFunc(i.service.VIPs, func(a netip.Addr) bool { return !a.IsLoopback() })
	for n := range i.service.Endpoints {
		if a := i.service.Endpoints[n].Address; a.IsLinkLocalUnicast() || a.IsLoopback() && !here {
			doubt(fmt.Sprintf("endpoints[%d].address", n), fmt.Sprintf("%s is used only by hosts whose addresses.allowed has a loopback or link-local network with it", a))
		}
	}
	if h := i.service.Health; h != nil && h.User != "" && h.User != balancer.ExecUser {
		doubt("health.user", fmt.Sprintf("hosts run programs of checks from etcd as %s only: nothing is run as %s", balancer.ExecUser, h.User))
	}
	if h := i.service.Health; h != nil && h.Type == balancer.ExecHealth {
		doubt("health.type", "exec checks run only on hosts with health.allow_exec = true")
	}
	return problems
}
