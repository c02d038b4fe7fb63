package guard

// features are the features that some frontends use. The table contains only the rules of features
// in use, so other features cost nothing.
//   - special: any of restricted, limited, silent, always and never.
//   - restricted, silent and rejected: frontends have source ranges, drop clients, or refuse clients.
//   - always and never: endpoints always see the node's address, or always the client's.
//   - direct: virtual servers forward packets unchanged, and endpoints reply to clients directly.
//   - clamps: frontends limit the segment size.
//   - links: the segment size is limited to the path MTU, in a mode that forwards packets.
//   - owned: only one of several hosts has an address at a time.
//   - roaming: connections may move here from other hosts, and the mode lets them continue.
//   - ranges: frontends have port ranges.
//   - limited: clients' connections are limited, and the kernel supports limits.
//   - dead and quiet: endpoints are dead, or are alive but get no new connections.
type features struct{ special, restricted, silent, rejected, always, never, direct, clamps, links, owned, roaming, dead, quiet, ranges, limited bool }

// concerns returns the features that the wanted and the applied frontends use.
func (w *wanted) concerns() features {
	return features{
		special: w.special.nonEmpty(), restricted: w.set(restrictedSet).nonEmpty(),
		silent: w.set(silentSet).nonEmpty(), rejected: w.set(rejectedSet).nonEmpty(), always: w.set(masqueradeSet).nonEmpty(), never: w.set(neverSet).nonEmpty(),
		direct: w.mode.LocalIn && w.direct.nonEmpty(), clamps: w.clamps.nonEmpty(), links: w.mode.Forward && w.clampsToLinks(), owned: w.owned.nonEmpty(), roaming: w.roaming(), dead: w.mode.Resets && w.set(deadSet).nonEmpty(), quiet: w.mode.LocalIn && w.set(quietSet).nonEmpty(), ranges: w.ranges.frontends > 0, limited: w.mode.Forward && w.limits.fault == nil && w.limits.nonEmpty(),
	}
}

// roaming reports whether connections to any frontend may move here from other hosts, and the mode
// lets them continue.
func (w *wanted) roaming() bool { return (w.mode.Resets || w.mode.LocalIn) && w.answers.nonEmpty() }

// nonEmpty reports whether the kernel's set has an entry, or a frontend wants an entry.
func (m *members) nonEmpty() bool { return len(m.count)+len(m.have) > 0 }
