package guard

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// Render returns, as input of nft, what the guard puts into the kernel for these frontends: their VIPs are held by vipd, and
// packets are forwarded between these interfaces. It needs no privilege, and answers equal questions equally.
func Render(o Options, frontends []*balancer.Frontend, interfaces []Interface) string {
	var b strings.Builder
	for _, f := range inet.Families() {
		if w := modelled(o, f, frontends, interfaces); w.needed() {
			w.render(&b)
		}
	}
	return b.String()
}

// render writes the table of a family.
func (w *wanted) render(b *strings.Builder) {
	l := newLayout(w.family)
	var tx nft.Tx
	l.write(&tx, l.chains(w.mode, w.bits, w.concerns()))
	for _, m := range w.members {
		tx.Add(l.table, l.sets[m.def.name], elements(m.wanted())...)
	}
	tx.Add(l.table, l.oneArm, oneArms(w.mode, w.interfaces)...)
	b.WriteString("# nft -f -\n" + tx.Text())
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

// wanted returns the entries that the set shall have, sorted.
func (m *members) wanted() []entry {
	var out []entry
	for e := range m.count {
		if m.wants(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, entry.compare)
	return out
}
