package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/store/etcd"
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

// withHeld returns the service with the addresses that it holds, as far as it asks for any.
func withHeld(s *balancer.Service, held map[netip.Addr]balancer.Name) *balancer.Service {
	if s == nil || len(s.Pools) == 0 {
		return s
	}
	var all []netip.Addr
	for a, by := range held {
		if by == s.Name {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	joined := *s
	joined.Allocated = all[:min(len(all), len(s.Pools))]
	return &joined
}

// lacksAddress reports whether a service asks for more addresses than it holds.
func lacksAddress(s *balancer.Service) bool { return s != nil && len(s.Allocated) < len(s.Pools) }

// takenVIPs returns problems for addresses that changes claim in their text, and that pools have given to others.
func (e *edit) takenVIPs(changes []*intent) (problems []balancer.Problem) {
	for _, i := range changes {
		if i.service == nil || i.What == unchangedService {
			continue
		}
		for n, vip := range i.service.VIPs {
			holder, held := e.held[vip]
			if !held || holder == i.Name || i.stored != nil && i.stored.Service != nil && slices.Contains(i.stored.Service.VIPs, vip) {
				continue
			}
			problems = append(problems, i.problem(fmt.Sprintf("vips[%d]", n), "%s was given to service %s by a pool: choose another address", vip, holder))
		}
	}
	return problems
}

// shortages returns problems for pools that are missing, or have fewer addresses than the changes ask for.
func (e *edit) shortages() (problems []balancer.Problem, err error) {
	asks := slices.DeleteFunc(slices.Clone(e.intents), func(i *intent) bool {
		return i.What == unchangedService || !lacksAddress(i.service)
	})
	if len(asks) == 0 {
		return nil, nil
	}
	all, err := e.writer.Pools(e)
	if err != nil {
		return nil, fmt.Errorf("reading the pools: %w", err)
	}
	pools := map[string]etcd.Pool{}
	for _, p := range all {
		pools[p.Name] = p
	}
	needed := map[string]uint64{}
	first := map[string]*intent{}
	for _, i := range asks {
		for _, name := range i.lacking(pools) {
			needed[name]++
			first[name] = cmp.Or(first[name], i)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(needed)) {
		text, p, there := "", pools[name], false
		switch _, there = pools[name]; {
		case !there:
			text = fmt.Sprintf("there is no pool %s: \"vipctl pool set %s CIDR...\" makes it", name, name)
		case p.Problem != "":
			text = fmt.Sprintf("pool %s can't be used: %s; \"vipctl pool set %[1]s CIDR...\" gives it others", name, p.Problem)
		case p.Free < needed[name]:
			text = fmt.Sprintf("pool %s is exhausted: it has %d free addresses, and these services need %d; \"vipctl pool set %s CIDR...\" with another network helps", name, p.Free, needed[name], name)
		default:
			continue
		}
		problems = append(problems, first[name].problem("vips", "%s", text))
	}
	return problems, nil
}

// lacking names the pools that the service asks an address of that it does not hold yet.
func (i *intent) lacking(pools map[string]etcd.Pool) (names []string) {
	holds := slices.Clone(i.service.Allocated)
	for _, pool := range i.service.Pools {
		name := cmp.Or(pool, etcd.DefaultPool)
		at := slices.IndexFunc(holds, func(a netip.Addr) bool {
			return slices.ContainsFunc(pools[name].CIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
		})
		if at < 0 {
			names = append(names, name)
			continue
		}
		holds = slices.Delete(holds, at, at+1)
	}
	return names
}
