package ownership

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"
)

// step by which lesser candidates wait for better ones.
const rankDelay = 150 * time.Millisecond

// score ranks nodes for a unit, or jurors for a node: the same on each host.
func score(of, node string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(of + "/" + node))
	x := h.Sum32()
	x = (x ^ x>>16) * 0x85ebca6b
	x = (x ^ x>>13) * 0xc2b2ae35
	return x ^ x>>16
}

// compare orders by a number, then by a score, then by a name.
func compare(number int, scoreA, scoreB uint32, nameA, nameB string) int {
	return cmp.Or(number, cmp.Compare(scoreA, scoreB), cmp.Compare(nameA, nameB))
}

// Cannot says why a node can't take a unit now; "": it can.
func (n *Node) cannot(name string, u *unit) string {
	m := n.members[name]
	switch {
	case m == nil || m.odd:
		return "it does not take part"
	case n.sessions[name] == nil:
		return "it has no session"
	case m.value.Standby || name == n.o.Name && n.o.Member.Standby:
		return "it is on standby"
	case n.fences[name] != nil:
		return "it is fenced"
	case m.value.Weight == 0 && !slices.Contains(u.policy.Prefer, name):
		return "its weight is 0"
	}
	ready, well := n.gate == open && !n.stopping, n.well()
	if name != n.o.Name {
		p := n.peers[name]
		if p == nil || !n.recently(p.heard) {
			return "it is not heard"
		}
		ready, well = p.ready, p.well
	}
	if !ready {
		return "its gate is closed"
	}
	for _, a := range u.addrs {
		at := m.value.place(a)
		switch {
		case at < 0:
			return "none of its devices has a network with " + a.String()
		case well>>at&1 == 0:
			return "its network is cut off"
		case m.value.Cannot[a] != "":
			return m.value.Cannot[a]
		}
	}
	return ""
}

// candidates are the nodes that can take a unit, best first: as the policy prefers, then by the fewest VIPs for their weight,
// then by rendezvous.
func (n *Node) candidates(u *unit) []string {
	var can []string
	for name := range n.members {
		if n.cannot(name, u) == "" {
			can = append(can, name)
		}
	}
	slices.SortFunc(can, func(a, b string) int {
		// Fewer for its weight: a/wa < b/wb.
		load := n.counted[a]*max(n.members[b].value.Weight, 1) - n.counted[b]*max(n.members[a].value.Weight, 1)
		return cmp.Or(preferred(u, a)-preferred(u, b), compare(load, score(u.name, b), score(u.name, a), a, b))
	})
	return can
}

// preferred is the place of a node in the policy's list.
func preferred(u *unit, name string) int {
	if i := slices.Index(u.policy.Prefer, name); i >= 0 {
		return i
	}
	return len(u.policy.Prefer)
}

// rank is this node's place among those that can take a unit; -1: it can't. The unit then counts for the best.
func (n *Node) rank(u *unit) int {
	can := n.candidates(u)
	if len(can) > 0 {
		n.counted[can[0]] += len(u.addrs)
	}
	return slices.Index(can, n.o.Name)
}

// best is the best node for a unit but this one; "": there is none.
func (n *Node) best(u *unit) string {
	for _, name := range n.candidates(u) {
		if name != n.o.Name {
			return name
		}
	}
	return ""
}
