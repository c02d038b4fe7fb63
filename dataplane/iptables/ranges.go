package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// rangesOf maps the path of each address to the port ranges in keys, the narrowest range first.
func rangesOf(keys []balancer.Key) map[path][]balancer.Key {
	all := map[path][]balancer.Key{}
	for _, k := range keys {
		if k.Port.IsRange() {
			all[addressPath(k)] = append(all[addressPath(k)], k)
		}
	}
	for _, ranges := range all {
		slices.SortFunc(ranges, compareRanges)
	}
	return all
}

// compareRanges orders ranges by their number of ports, because the narrowest range gets a packet.
func compareRanges(a, b balancer.Key) int {
	return cmp.Or(cmp.Compare(a.Port.Len(), b.Port.Len()), a.Compare(b))
}

func addressPath(k balancer.Key) path {
	p := pathOf(k)
	return p.prefix(p.addr)
}

// rangeRule returns the rule that sends the packets to a port range to its frontend. It belongs to
// the node of the range's address, after the rules for single ports.
func rangeRule(k balancer.Key) string {
	if k.Port == balancer.AllPorts {
		return fmt.Sprintf("-p %s -g %s", k.Proto, frontChain(k))
	}
	return fmt.Sprintf("-p %s -m %s --dport %d:%d -g %s", k.Proto, k.Proto, k.Port.First(), k.Port.Last(), frontChain(k))
}

// rangesAt returns the port ranges on the address with the path at, from n or a node below it.
func (n *treeNode) rangesAt(at path) []balancer.Key {
	for n.at != at {
		i := slices.IndexFunc(n.branches, func(b branch) bool { return b.node != nil && b.at.covers(at) })
		if i < 0 {
			return nil
		}
		n = n.branches[i].node
	}
	return n.ranges
}

// withRanges returns a copy of n, or of a node below it, in which the node of an address has these
// ranges. It adds the node, or removes it if it becomes empty. It returns nil if n becomes empty,
// unless n is the root.
func (t *tree) withRanges(n *treeNode, at path, ranges []balancer.Key, changed *changes) *treeNode {
	copied := *n
	if n.at == at {
		copied.ranges = ranges
		return copied.unlessEmpty(n, changed)
	}
	if i := slices.IndexFunc(n.branches, func(b branch) bool { return b.node != nil && b.at.covers(at) }); i >= 0 {
		below := t.withRanges(n.branches[i].node, at, ranges, changed)
		if below == nil {
			copied.branches = slices.Delete(slices.Clone(n.branches), i, i+1)
			return copied.unlessEmpty(n, changed)
		}
		copied.branches = slices.Clone(n.branches)
		copied.branches[i].node = below
		return &copied
	}
	if len(ranges) == 0 {
		return n
	}
	var inside, outside []branch
	for _, b := range n.branches {
		if at.covers(b.at) {
			inside = append(inside, b)
		} else {
			outside = append(outside, b)
		}
	}
	was := t.next
	added := t.newRangeNode(at, inside, ranges, fanOut)
	added.eachSince(was, changed.write)
	i, _ := slices.BinarySearchFunc(outside, at, func(b branch, at path) int { return b.at.compare(at) })
	copied.branches = slices.Insert(outside, i, branch{at, added})
	return t.dividedIfFull(&copied, changed)
}

// newRangeNode returns the node for an address with these ranges.
func (t *tree) newRangeNode(at path, branches []branch, ranges []balancer.Key, fan int) *treeNode {
	t.next++
	n := t.divide(at, nodeName(t.next), branches, fan)
	n.ranges = ranges
	return n
}

// firstTarget returns the first of a range's endpoint ports, or 0 for a single port. It ignores
// endpoints that get no new connections, because they may still have an earlier port.
func firstTarget(f *balancer.Frontend) uint16 {
	i := slices.IndexFunc(f.Backends, func(b balancer.Backend) bool { return b.State == balancer.Active })
	if !f.Key.Port.IsRange() || i < 0 {
		return firstOf(f.Key.Port)
	}
	return f.Backends[i].Addr.Port()
}

// addMoved gives each target of a moved range (served at other ports) a chain with a rule for each
// port. A single rule with a port offset (--to-destination ADDRESS:9000-9999/8000) would sometimes
// lead to a wrong port: if a flow with the translated addresses exists, the kernel chooses the next
// port.
func (m *form) addMoved(f *balancer.Frontend, targets []target) {
	used := map[string]bool{}
	for i := range targets {
		w := &targets[i]
		c := xtables.Chain{Name: movedChain(f.Key, w.addr.Addr(), used), Rules: make([]string, f.Key.Port.Len())}
		used[c.Name] = true
		for n := range c.Rules {
			to := netip.AddrPortFrom(w.addr.Addr(), w.addr.Port()+uint16(n))
			c.Rules[n] = fmt.Sprintf("-p %s -m %s --dport %d -j DNAT --to-destination %s", f.Proto, f.Proto, int(f.Key.Port.First())+n, to)
		}
		m.below = append(m.below, c)
		w.proto, w.action = "", "-g "+c.Name
	}
}

// movedChain returns the name of the chain for an endpoint of a moved range. The name depends on
// the endpoint's address, so other endpoints keep their chains. It contains 30 bits of a hash; if
// used contains the name, movedChain hashes again. Other chains with groupPrefix have no capital
// letter after the hash of the key.
func movedChain(k balancer.Key, endpoint netip.Addr, used map[string]bool) string {
	for hashed := (balancer.Key{Addr: endpoint}); ; hashed.Port++ {
		if name := groupPrefix + keyHash(k) + "-P" + keyHash(hashed)[:6]; !used[name] {
			return name
		}
	}
}

// onPort returns backend with its port replaced by first, or unchanged if first is 0.
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
