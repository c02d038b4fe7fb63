package guard

// concerns are the features that some frontends use. The table contains only the rules of features
// in use, so other features cost nothing.
//   - special: frontends that use any of the next five.
//   - restricted, silent and rejected: source ranges, no answer, and refusal.
//   - always and never: endpoints always see the node's address, or always the client's.
//   - direct: packets reach endpoints unchanged.
//   - clamps: the segment size is limited.
//   - links: the segment size is limited to the MTU of the path, in a mode that forwards packets.
//   - owned: the host drops packets to addresses that another host has.
//   - roaming: connections move here from other hosts.
//   - ranges: frontends have ranges of ports.
//   - limited: connections of clients are limited, and the kernel supports that.
//   - dead and quiet: endpoints to which a reused client port would lead, or whose connections it
//     would end.
type concerns struct{ special, restricted, silent, rejected, always, never, direct, clamps, links, owned, roaming, dead, quiet, ranges, limited bool }

// concerns returns the features in use.
func (w *wanted) concerns() concerns {
	return concerns{
		special: w.special.nonEmpty(), restricted: w.set(restrictedSet).nonEmpty(),
		silent: w.set(silentSet).nonEmpty(), rejected: w.set(rejectedSet).nonEmpty(), always: w.set(masqueradeSet).nonEmpty(), never: w.set(neverSet).nonEmpty(),
		direct: w.mode.LocalIn && w.direct.nonEmpty(), clamps: w.clamps.nonEmpty(), links: w.mode.Forward && w.clampsToLinks(), owned: w.owned.nonEmpty(), roaming: w.roaming(), dead: w.mode.Resets && w.set(deadSet).nonEmpty(), quiet: w.mode.LocalIn && w.set(quietSet).nonEmpty(), ranges: w.ranges.frontends > 0, limited: w.mode.Forward && w.limits.fault == nil && w.limits.nonEmpty(),
	}
}

// roaming reports whether connections of any frontend may move here from other hosts, in a mode in
// which such connections can continue.
func (w *wanted) roaming() bool { return (w.mode.Resets || w.mode.LocalIn) && w.answers.nonEmpty() }

// nonEmpty reports whether the set has an entry or should have an entry.
func (m *members) nonEmpty() bool { return len(m.count)+len(m.have) > 0 }
