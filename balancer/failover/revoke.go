package failover

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// revoke revokes one session that is silent, or whose node an operator has declared to be off. It
// also claims the session's VIPs.
func (t *takeover) revoke() {
	if t.writer.claiming || t.gate.stopping {
		return
	}
	for _, node := range slices.Sorted(maps.Keys(t.etcd.sessions)) {
		s := t.etcd.sessions[node]
		if node == t.o.Name || s.unreadable {
			continue
		}
		if fence := t.etcd.fences[node]; fence != nil {
			w := Write{If: []Condition{{Key{Fences, node}, fence.revision}}}
			t.claimFrom(w, node, fmt.Sprintf("%s is off, as reported by %s", node, cmp.Or(fence.value.By, "an operator")), "fence")
			return
		}
		if t.revokeSilent(node, s) {
			return
		}
	}
}

// revokeSilent starts to revoke a session if it is silent, enough jurors have voted it dead, and it
// is this node's turn. If votes are missing, it requests them. It reports whether it has started
// the revocation.
func (t *takeover) revokeSilent(node string, s *record[Session]) bool {
	own, silent := t.jurors.silent(node, s)
	if !silent {
		delete(t.jurors.votes, s.value.ID)
		return false
	}
	since := max(own.Answered, t.o.Started, s.known).Add(s.value.Timing.Silence)
	if t.now < since.Add(time.Duration(t.turn(node, s.value.ID))*rankDelay) {
		return false
	}
	w, voters := t.jurors.voterConditions(node, s, t.jurors.castOwn(own, s))
	if !MayRevoke(t.now, s.known, len(s.value.Jury), len(voters), s.value.Timing) {
		t.jurors.ask(node, s)
		return false
	}
	how := "confirmed by " + strings.Join(slices.DeleteFunc(voters, func(v string) bool { return v == t.o.Name }), ", ")
	if len(voters) < 2 {
		how = "no other node confirms it"
	}
	t.claimFrom(w, node, fmt.Sprintf("%s (silent for %s; %s)", node, formatSeconds(t.now.Since(t.jurors.lastSign(node))), how), "silent")
	return true
}

// turn returns how many nodes may revoke a session before this node, because they are better
// candidates for the session's first VIP.
func (t *takeover) turn(node string, session ID) int {
	turn := len(t.etcd.members)
	owned := t.ownedBy(node, session)
	if len(owned) == 0 {
		return turn
	}
	can := t.ranking.candidates(owned[0])
	if i := slices.Index(can, t.o.Name); i >= 0 {
		return i
	}
	return min(len(can), turn)
}

// ownedBy returns the VIPs that a session owns.
func (t *takeover) ownedBy(node string, session ID) (all []*vip) {
	for _, v := range t.vips.order {
		if o := t.etcd.owners[v.name]; o != nil && o.value.Node == node && o.value.Session == session {
			all = append(all, v)
		}
	}
	return all
}

// claimFrom deletes a node's session in etcd, and makes this node the owner of the VIPs for which
// it is the best candidate. The session's other VIPs are then free.
func (t *takeover) claimFrom(w Write, node, from, why string) {
	s := t.etcd.sessions[node]
	w.If = append(w.If, Condition{Key{Sessions, node}, s.revision})
	w.Delete = append(w.Delete, Key{Sessions, node})
	var all []*vip
	if t.gate.passes() && !t.doubts() {
		before, seen := maps.Clone(t.ranking.counted), ranks{}
		for _, v := range t.ownedBy(node, s.value.ID) {
			if t.ranking.rank(v, seen) == 0 && len(all) < maxClaimed {
				all = append(all, v)
			}
		}
		t.ranking.counted = before // because ranking.rank changes the counts
	}
	t.claim(w, all, from, why, t.jurors.lastSign(node))
}
