package guard

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/xtables"
)

// Render returns, as input of nft, what the guard puts into a kernel that can do all it is asked for these frontends: their
// VIPs are held by vipd, and packets are forwarded between these interfaces. With the legacy variant it is in the syntax of
// ipset restore and iptables-restore. It needs no privilege, and answers equal questions equally.
func Render(o Options, frontends []*balancer.Frontend, interfaces []Interface) string {
	var b strings.Builder
	for _, f := range inet.Families() {
		w := modelled(o, f, frontends, interfaces)
		switch {
		case !w.needed():
		case o.Variant == xtables.Legacy:
			renderLegacy(&b, w)
		default:
			renderNative(&b, w)
		}
	}
	return b.String()
}

// renderNative writes the table of a family.
func renderNative(b *strings.Builder, w *wanted) {
	l := newLayout(w.family)
	w.set(allowedSet).disjoint = true
	var tx nft.Tx
	l.write(&tx, l.chains(w.mode, w.bits, w.concerns()))
	for _, m := range w.members {
		if l.sets[m.def.name] != nil {
			tx.Add(l.table, l.sets[m.def.name], elements(m.wanted())...)
		}
	}
	tx.Add(l.table, l.oneArm, oneArms(w.mode, w.interfaces)...)
	b.WriteString("# nft -f -\n" + tx.Text())
}

// renderLegacy writes the sets and rules of a family.
func renderLegacy(b *strings.Builder, w *wanted) {
	g := (&legacy{}).compose(w)
	g.plan.hairpin, g.plan.randomFully, g.plan.clamp, g.plan.arrivals = true, true, true, w.mode.LocalIn
	g.cover(true)
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
			fmt.Fprintf(b, "add %s %s\n", m.name, member(e))
		}
	}
	fmt.Fprintf(b, "# %s-restore --noflush\n", g.family.Program())
	for _, p := range g.parts {
		if !g.wants(p) {
			continue
		}
		var jumps []string
		for _, j := range p.def.jumps(&g.plan) {
			jumps = append(jumps, j.insertion())
		}
		b.WriteString(xtables.Input(p.def.table, p.def.chains(&g.plan), jumps...))
	}
}

// modelled is what the guard of a family holds for frontends that are wanted and applied, and whose VIPs vipd holds.
func modelled(o Options, of inet.Family, frontends []*balancer.Frontend, interfaces []Interface) *wanted {
	w := newWanted(of, o)
	held := map[netip.Addr]bool{}
	for _, f := range frontends {
		if f.Addr.Is4() != (of == inet.IPv4) {
			continue
		}
		w.want(f, 1, false)
		w.want(f, 1, true)
		if !f.NodePort && !f.Addr.IsLoopback() && !held[f.Addr] {
			held[f.Addr] = true
			w.hold(f.Addr, 1)
		}
	}
	interfaces = slices.Clone(interfaces)
	slices.SortFunc(interfaces, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	w.connect(interfaces)
	return w
}

// creation is the line that makes the set.
func (m *members) creation() string {
	line := fmt.Sprintf("create %s %s family %s", m.name, m.def.kind, m.family.Word())
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
		text += fmt.Sprintf(",%s:%d", balancer.ProtocolOf(byte(e.Proto)), e.Port)
	}
	switch {
	case e.Net.IsSingleIP():
		text += "," + e.Net.Addr().String()
	case e.Net.IsValid():
		text += "," + e.Net.String()
	}
	return text
}
