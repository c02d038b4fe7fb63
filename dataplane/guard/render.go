package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// Render returns, in the syntax of ipset restore and iptables-restore, what the guard puts into a kernel that can do
// all it is asked for these frontends: their VIPs are held by vipd, and packets are forwarded between these interfaces.
// It needs no privilege, and answers equal questions equally.
func Render(o Options, frontends []*balancer.Frontend, interfaces []string) string {
	var b strings.Builder
	for _, family := range xtables.Families() {
		g := modelled(o, ipset.Family(family), frontends, interfaces)
		if !g.needed() {
			continue
		}
		b.WriteString("# ipset restore\n")
		for _, m := range slices.Backward(g.members) {
			if g.uses(m) {
				b.WriteString(m.creation() + "\n")
			}
		}
		for _, m := range slices.Backward(g.members) {
			if !g.uses(m) {
				continue
			}
			for _, e := range m.wanted() {
				fmt.Fprintf(&b, "add %s %s\n", m.name, member(e))
			}
		}
		fmt.Fprintf(&b, "# %s-restore --noflush\n", program(g.family))
		for _, p := range g.parts {
			if !g.wants(p) {
				continue
			}
			var jumps []string
			for _, j := range p.def.jumps(&g.plan) {
				jumps = append(jumps, j.insertion())
			}
			b.WriteString(restore(p.def.table, p.def.chains(&g.plan), jumps...))
		}
	}
	return b.String()
}

// modelled is a guard of which nothing is in any kernel, and everything that it would put there is known.
func modelled(o Options, of ipset.Family, frontends []*balancer.Frontend, interfaces []string) *family {
	g := (&family{family: of}).compose(o)
	g.plan.hairpin, g.plan.randomFully, g.plan.clamp, g.plan.arrivals = true, true, true, o.Mode.LocalIn
	held := map[netip.Addr]bool{}
	for _, f := range frontends {
		if f.Addr.Is4() != (of == ipset.IPv4) {
			continue
		}
		g.want(f, 1, false)
		g.want(f, 1, true)
		if !f.NodePort && !f.Addr.IsLoopback() && !held[f.Addr] {
			held[f.Addr] = true
			g.hold(f.Addr, 1)
		}
	}
	g.connect(slices.Sorted(slices.Values(interfaces)))
	g.cover(true)
	return g
}

// creation is the line that makes the set.
func (m *members) creation() string {
	line := fmt.Sprintf("create %s %s family %s", m.name, m.def.kind, inet(m.family))
	if p := m.def.passing; p != nil {
		return line + fmt.Sprintf(" hashsize %d maxelem %d timeout %d forceadd", p.Buckets, p.Max, p.Seconds)
	}
	return line + fmt.Sprintf(" maxelem %d", ipset.MaxEntries)
}

// wanted returns the entries that the set shall have, sorted.
func (m *members) wanted() []ipset.Entry {
	var out []ipset.Entry
	for e := range m.count {
		if m.wants(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, ipset.Entry.Compare)
	return out
}

// member writes an entry as ipset does.
func member(e ipset.Entry) string {
	text := e.Addr.String()
	if e.Port != 0 {
		text += fmt.Sprintf(",%s:%d", protocolName(e.Proto), e.Port)
	}
	switch {
	case e.Net.IsSingleIP():
		text += "," + e.Net.Addr().String()
	case e.Net.IsValid():
		text += "," + e.Net.String()
	}
	return text
}

func protocolName(p ipset.Protocol) string {
	switch p {
	case ipset.UDP:
		return "udp"
	case ipset.SCTP:
		return "sctp"
	}
	return "tcp"
}

func inet(family ipset.Family) string {
	if family == ipset.IPv6 {
		return "inet6"
	}
	return "inet"
}

func program(family ipset.Family) string {
	if family == ipset.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}
