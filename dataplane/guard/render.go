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

// Render returns the guard for frontends in nft syntax. It assumes that vipd holds their VIPs, and
// that packets are forwarded between the interfaces. It needs no privileges, and its output is
// deterministic.
func Render(o Options, frontends []*balancer.Frontend, interfaces []Interface) string {
	var b strings.Builder
	for _, f := range inet.Families() {
		if w := modelWanted(o, f, frontends, interfaces); w.needed() {
			w.render(&b)
		}
	}
	return b.String()
}

func (w *wanted) render(b *strings.Builder) {
	l := newLayout(w.family)
	var tx nft.Tx
	with := w.concerns()
	l.write(&tx, w.mode, w.bits, with)
	for _, m := range w.members {
		single, ranged := byRange(m.wanted())
		tx.Add(l.table, l.sets[m.def.name], elements(single)...)
		tx.Add(l.table, l.inRange.sets[m.def.name], elements(ranged)...)
	}
	w.ranges.write(&tx, l)
	w.limits.write(&tx, l, w.bits, with.limited)
	tx.Add(l.table, l.oneArm, oneArmPairs(w.mode, w.interfaces)...)
	if w.fast.serves(w.mode) {
		for _, i := range w.interfaces {
			w.fast.present = append(w.fast.present, i.Name)
		}
		l.writeFastPath(&tx, w.bits, &w.fast, w.fast.devices()...)
	}
	b.WriteString("# nft -f -\n" + tx.Text())
}

// modelWanted returns a family's guard for frontends that are wanted and applied and whose VIPs
// vipd holds.
func modelWanted(o Options, of inet.Family, frontends []*balancer.Frontend, interfaces []Interface) *wanted {
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
	w.setInterfaces(interfaces, false)
	return w
}

// wanted returns the entries that the set should have, sorted.
func (m *members) wanted() []setEntry {
	var out []setEntry
	for e := range m.count {
		if m.wants(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, setEntry.compare)
	return out
}
