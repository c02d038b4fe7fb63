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
