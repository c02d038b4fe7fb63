package guard

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// wanted is the desired state of one family's guard.
type wanted struct {
	family inet.Family
	log    *slog.Logger
	bits   markBits
	// mode holds the current mode's requirements. interfaces holds the interfaces between which
	// packets are forwarded.
	mode       dataplane.Needs
	interfaces []Interface
	// alwaysClamp is Options.ClampMSS. routeMTU reports whether a route has its own MTU.
	alwaysClamp, routeMTU bool

	members []*members
	ranges  openRanges
	limits  limits
	fast    fastPath
	// These are frequently used members. held contains the addresses that vipd added, pending the
	// held addresses that are silent, and owned the addresses that another host may have.
	frontends, special, held, pending, owned, direct, clamps, answers *members
	// unknown is the number of applied frontends at each place about which nothing else is known.
	unknown map[setEntry]int
}

// Interface is a network interface for which packets are forwarded.
type Interface struct {
	Name  string
	Index int
	// MTU is the maximum size of a packet in bytes, or 0 if no packet can leave through the
	// interface.
	MTU int
}

// clampsToLinks reports whether the segment size must be limited to the path MTU. If all links have
// the same MTU, neither side announces a segment that is too large for the other link.
func (w *wanted) clampsToLinks() bool {
	if w.alwaysClamp || w.routeMTU {
		return true
	}
	mtu := 0
	for _, i := range w.interfaces {
		if i.MTU != 0 && mtu != 0 && i.MTU != mtu {
			return true
		}
		mtu = cmp.Or(i.MTU, mtu)
	}
	return false
}

func newWanted(family inet.Family, o Options) *wanted {
	w := &wanted{
		family: family, log: o.Log, bits: newMarkBits(o.MasqueradeBit), mode: o.Mode, alwaysClamp: o.ClampMSS,
		unknown: map[setEntry]int{}, fast: fastPath{names: o.FastPath, hardware: o.FastPathHardware, due: true},
	}
	for _, def := range setDefs() {
		m := newMembers(def)
		w.members = append(w.members, m)
		if def.early && def.entries != nil {
			m.kept = func(e setEntry) bool { return w.unknown[placeOnly(e)] > 0 }
		}
	}
	w.frontends, w.special, w.direct = w.set(frontendsSet), w.set(specialSet), w.set(directSet)
	w.held, w.pending, w.owned, w.clamps = w.set(heldSet), w.set(pendingSet), w.set(ownedSet), w.set(clampsSet)
	w.answers = w.set(answersSet)
	w.clamps.disjoint, w.set(allowedSet).disjoint = true, true
	w.set(deadSet).veto = func(setEntry) bool { return !w.mode.Resets }
	w.set(quietSet).veto = func(setEntry) bool { return !w.mode.LocalIn }
	w.frontends.veto = func(e setEntry) bool {
		return w.mode.Marked || w.special.count[e] > 0 || w.special.have[e] && w.special.kept(e)
	}
	return w
}

func (w *wanted) set(name string) *members {
	return w.members[slices.IndexFunc(w.members, func(m *members) bool { return m.def.name == name })]
}

// want adds the argument by to the reference count of each set entry that f needs. If applied is
// set, f counts as an applied frontend, otherwise as a desired frontend.
func (w *wanted) want(f *balancer.Frontend, by int, applied bool) {
	if f.Addr.IsLoopback() {
		return
	}
	if applied && f.Service == "" {
		w.unknown[placeOf(f.Key)] += by
	}
	w.ranges.want(f, by, applied)
	w.limits.want(f, by, applied)
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

// hold adds the argument by to the reference count of a held address, which vipd adds to the host.
func (w *wanted) hold(a netip.Addr, by int) { w.held.want(setEntry{Addr: a}, by) }

// own adds the argument by to the reference count of an address that only one of several hosts has
// at a time.
func (w *wanted) own(a netip.Addr, by int) {
	w.hold(a, by)
	w.owned.want(setEntry{Addr: a}, by)
}

func (w *wanted) setInterfaces(interfaces []Interface, routeMTU bool) {
	w.interfaces, w.routeMTU = interfaces, routeMTU
}

// setMode sets the mode's requirements, and reports whether they have changed.
func (w *wanted) setMode(m dataplane.Needs) bool {
	if w.mode == m {
		return false
	}
	if w.mode.Marked != m.Marked {
		w.frontends.markAll()
	}
	w.mode = m
	w.set(deadSet).markAll()
	w.set(quietSet).markAll()
	return true
}

// allApplied reports whether all desired frontends that serve clients are applied.
func (w *wanted) allApplied() bool {
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
