package iptables

import (
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
)

// rangeRules returns the root's rules for ranges of ports among keys, sorted, or nil without
// ranges. They precede the tree, and do not match the ports of narrower frontends.
func rangeRules(keys []balancer.Key) []string {
	ranges := slices.DeleteFunc(slices.Clone(keys), func(k balancer.Key) bool { return !k.Port.IsRange() })
	if len(ranges) == 0 {
		return nil
	}
	slices.SortFunc(ranges, balancer.Key.Compare)
	narrower := map[balancer.Key][]balancer.PortRange{}
	for _, k := range keys {
		for _, r := range ranges {
			if r != k && r.Covers(k) {
				narrower[r] = append(narrower[r], k.Port)
			}
		}
	}
	rules := []string{}
	for _, k := range ranges {
		open := []balancer.PortRange{k.Port}
		for _, p := range narrower[k] {
			open = balancer.Without(open, p)
		}
		for _, p := range open {
			rules = append(rules, rangeRule(k, p))
		}
	}
	return rules
}

// rangeRule returns the rule for a part of a range of ports.
func rangeRule(k balancer.Key, part balancer.PortRange) string {
	ports := fmt.Sprintf("-m %s --dport %s ", k.Proto, part)
	switch {
	case part == balancer.AllPorts:
		ports = ""
	case part.IsRange():
		ports = fmt.Sprintf("-m %s --dport %d:%d ", k.Proto, part.First(), part.Last())
	}
	return fmt.Sprintf("-d %s -p %s %s-g %s", netip.PrefixFrom(k.Addr, k.Addr.BitLen()), k.Proto, ports, frontChain(k))
}

// onPort returns a backend of a rule with the frontend's first port, unless that is 0.
func onPort(backend netip.AddrPort, first uint16) netip.AddrPort {
	if first == 0 {
		return backend
	}
	return netip.AddrPortFrom(backend.Addr(), first)
}

// firstOf returns the first port of a range, or 0 for a single port.
func firstOf(p balancer.PortRange) uint16 {
	if p.IsRange() {
		return p.First()
	}
	return 0
}

// singlePorts returns the keys with a single port, which are in the tree.
func singlePorts(keys []balancer.Key) []balancer.Key {
	return slices.DeleteFunc(slices.Clone(keys), func(k balancer.Key) bool { return k.Port.IsRange() })
}

// withRanges returns t with these rules for ranges of ports in its root. It records the root if its
// rules have changed.
func (t tree) withRanges(rules []string, changed *changes) tree {
	root := *t.root
	if root.ranges = rules; !slices.Equal(rules, t.root.ranges) {
		changed.write(&root)
	}
	t.root = &root
	return t
}
