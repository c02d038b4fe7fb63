package failover

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// mostTaken bounds the VIPs of one transaction: etcd takes 128 operations and 128 conditions.
const mostTaken = 100

// bury buries the sessions that are silent, and takes their VIPs.
func (n *Node) bury() {
	if n.taking || n.stopping {
		return
	}
	for _, node := range slices.Sorted(maps.Keys(n.sessions)) {
		s := n.sessions[node]
		if node == n.o.Name || s.odd {
			continue
		}
		if fence := n.fences[node]; fence != nil {
			w := Write{If: []Condition{{Key{Fences, node}, fence.revision}}}
			n.buried(w, node, fmt.Sprintf("%s is off, says %s", node, cmp.Or(fence.value.By, "an operator")), "fence", n.lastSign(node))
			return
		}
		if n.buryIfSilent(node, s) {
			return
		}
	}
}

// buryIfSilent reports whether it has begun to bury.
func (n *Node) buryIfSilent(node string, s *record[Session]) bool {
	j := n.juror(node, s.value.ID)
	t := s.value.Timing
	if j == nil || !j.Silent(n.now, n.o.Started, t) || n.now.Since(s.known) < t.Silence {
		delete(n.votes, s.value.ID)
		return false
	}
	since := max(j.Answered, n.o.Started, s.known).Add(t.Silence)
	if n.now < since.Add(time.Duration(n.turn(node, s.value.ID))*rankDelay) {
		return false
	}
	votes := n.votes[s.value.ID]
	if votes == nil {
		votes = map[string]ID{}
		n.votes[s.value.ID] = votes
	}
	if j.Vote(n.now, n.o.Started, t) && slices.Contains(s.value.Jury, n.o.Name) {
		votes[n.o.Name] = n.o.Member.Boot
	}
	w, voters := n.ballot(node, s, votes)
	if !MayBury(n.now, s.known, len(s.value.Jury), len(voters), t) {
		n.ask(node, s)
		return false
	}
	how := "confirmed by " + strings.Join(slices.DeleteFunc(voters, func(v string) bool { return v == n.o.Name }), ", ")
	if len(voters) < 2 {
		how = "no other node confirms"
	}
	sign := n.lastSign(node)
	n.buried(w, node, fmt.Sprintf("%s (silent for %s; %s)", node, seconds(n.now.Since(sign)), how), "silent", sign)
	return true
}

// lastSign is when a node with a session was last heard of: it was confirmed, or had etcd confirm it.
func (n *Node) lastSign(node string) Time {
	known := n.sessions[node].known
	if j := n.jurors[node]; j != nil {
		return max(known, j.Answered)
	}
	return known
}

// ballot returns a write that holds while those who voted still run, and who they are.
func (n *Node) ballot(node string, s *record[Session], votes map[string]ID) (w Write, voters []string) {
	for _, name := range s.value.Jury {
		m := n.members[name]
		if name == node || m == nil || votes[name] == 0 || votes[name] != m.value.Boot {
			continue
		}
		voters = append(voters, name)
		w.If = append(w.If, Condition{Key{Nodes, name}, m.revision})
	}
	return w, voters
}

// ask asks the jurors for their votes, once a heartbeat.
func (n *Node) ask(node string, s *record[Session]) {
	if n.now.Since(n.asked) < n.o.Timing.Beat/2 {
		return
	}
	n.asked = n.now
	for _, name := range s.value.Jury {
		if name != node && name != n.o.Name {
			n.do(Send{name, -1, Message{Kind: Ask, From: n.o.Name, Boot: n.o.Member.Boot, Session: s.value.ID, Subject: node}})
		}
	}
}

// turn is how many nodes come before this one to bury a session: those that are better for its first VIP.
func (n *Node) turn(node string, session ID) int {
	turn := len(n.members)
	owned := n.owned(node, session)
	if len(owned) == 0 {
		return turn
	}
	can := n.candidates(owned[0])
	if i := slices.Index(can, n.o.Name); i >= 0 {
		return i
	}
	return min(len(can), turn)
}

// owned are the units that a session owns.
func (n *Node) owned(node string, session ID) (all []*unit) {
	n.each(func(u *unit) {
		if o := n.owners[u.name]; o != nil && o.value.Node == node && o.value.Session == session {
			all = append(all, u)
		}
	})
	return all
}

// buried writes that the session of a node is no more, and that this node owns what of its VIPs it is best for. The others are
// free then.
func (n *Node) buried(w Write, node, from, why string, since Time) {
	s := n.sessions[node]
	w.If = append(w.If, Condition{Key{Sessions, node}, s.revision})
	w.Delete = append(w.Delete, Key{Sessions, node})
	var units []*unit
	if n.gate == open && n.passes() && !n.doubts() {
		before, seen := maps.Clone(n.counted), ranks{}
		for _, u := range n.owned(node, s.value.ID) {
			if n.rank(u, seen) == 0 && len(units) < mostTaken {
				units = append(units, u)
			}
		}
		n.counted = before // ranking counts
	}
	n.take(w, units, from, why, since)
}
