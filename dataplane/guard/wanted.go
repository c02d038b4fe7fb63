package guard

import (
	"log/slog"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// wanted is what shall be in the guard of one family, whatever holds it in the kernel.
type wanted struct {
	family inet.Family
	log    *slog.Logger
	bits   markBits
	// mode is the one in use, and interfaces those that packets are forwarded between.
	mode       dataplane.Needs
	interfaces []Interface

	members []*members
	// Those of members that are asked for most; held are the addresses that vipd added, and pending those among them
	// that are silent, and owned those that another host may have.
	frontends, special, held, pending, owned, direct, clamps, answers *members
	// unknown counts applied frontends of which nothing is known but where they are.
	unknown map[entry]int
}

// Interface is a network interface that packets are forwarded between.
type Interface struct {
	Name  string
	Index int
}

func newWanted(family inet.Family, o Options) *wanted {
	w := &wanted{
		family: family, log: o.Log, bits: newMarkBits(o.MasqueradeBit), mode: o.Mode,
		unknown: map[entry]int{},
	}
	for _, def := range setDefs() {
		m := newMembers(def)
		w.members = append(w.members, m)
		if def.early && def.entries != nil {
			m.kept = func(e entry) bool { return w.unknown[at(e)] > 0 }
		}
	}
	w.frontends, w.special, w.direct = w.set(frontendsSet), w.set(specialSet), w.set(directSet)
	w.held, w.pending, w.owned, w.clamps = w.set(heldSet), w.set(pendingSet), w.set(ownedSet), w.set(clampsSet)
	w.answers = w.set(answersSet)
	w.clamps.disjoint, w.set(allowedSet).disjoint = true, true
	w.set(deadSet).veto = func(entry) bool { return !w.mode.Resets }
	w.set(quietSet).veto = func(entry) bool { return !w.mode.LocalIn }
	w.frontends.veto = func(e entry) bool {
		return w.mode.Marked || w.special.count[e] > 0 || w.special.have[e] && w.special.kept(e)
	}
	return w
}

func (w *wanted) set(name string) *members {
	return w.members[slices.IndexFunc(w.members, func(m *members) bool { return m.def.name == name })]
}

// want counts f by times more among what is wanted or what is applied.
func (w *wanted) want(f *balancer.Frontend, by int, applied bool) {
	if f.Addr.IsLoopback() {
		return
	}
	if applied && f.Service == "" {
		w.unknown[placeOf(f.Key)] += by
	}
	for _, m := range w.members {
		if m.def.entries == nil {
			continue
		}
		for _, e := range m.def.entries(f) {
			if applied || m.def.early {
				m.want(e, by)
			} else {
				m.ask(e, by)
			}
		}
	}
}

// hold counts an address that vipd adds.
func (w *wanted) hold(a netip.Addr, by int) { w.held.want(entry{Addr: a}, by) }

// own counts an address that one host of several has.
func (w *wanted) own(a netip.Addr, by int) {
	w.hold(a, by)
	w.owned.want(entry{Addr: a}, by)
}

// connect sets the interfaces that packets are forwarded between.
func (w *wanted) connect(interfaces []Interface) { w.interfaces = interfaces }

// setMode says what the mode does, and reports whether that is news.
func (w *wanted) setMode(m dataplane.Needs) bool {
	if w.mode == m {
		return false
	}
	if w.mode.Marked != m.Marked {
		w.frontends.touch()
	}
	w.mode = m
	w.set(deadSet).touch()
	w.set(quietSet).touch()
	return true
}

// carried reports whether all that is wanted to serve is applied.
func (w *wanted) carried() bool {
	served := w.set(servedSet)
	for e := range served.asked {
		if served.count[e] == 0 {
			return false
		}
	}
	return true
}

// needed reports whether there is anything to guard.
func (w *wanted) needed() bool { return len(w.frontends.count) > 0 || len(w.held.count) > 0 }
