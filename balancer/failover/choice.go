package failover

import (
	"cmp"
	"hash/fnv"
	"net/netip"
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

// cannot says why a node can't take a unit, and what it moves with, now; "" means it can.
func (n *Node) cannot(name string, u *unit) string { return n.whyNot(name, u, false) }

// whyNot is cannot, or, by force, why a node can't even have a unit that it can't serve.
func (n *Node) whyNot(name string, u *unit, force bool) string {
	for _, each := range n.together(u) {
		if why := n.cannotAlone(name, each, force); why != "" {
			return why
		}
	}
	return ""
}

// together are the units that a unit moves with, itself among them.
func (n *Node) together(u *unit) []*unit {
	if all := n.groups[u.policy.Group]; len(all) > 0 {
		return all
	}
	return []*unit{u}
}

// leader is the node that the units of a unit's group go to: the owner of the first that has one. "" means there is none.
func (n *Node) leader(u *unit) string {
	for _, each := range n.groups[u.policy.Group] {
		if o := n.owners[each.name]; o != nil && !o.odd && n.alive(o.value) {
			return o.value.Node
		}
	}
	return ""
}

func (n *Node) cannotAlone(name string, u *unit, force bool) string {
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
	case m.value.Weight == 0 && !slices.Contains(n.together(u)[0].policy.Prefer, name) && !n.movesTo(name, u) && n.leader(u) != name:
		return "its weight is 0"
	}
	ready, well := n.gate == open && !n.stopping, n.well()
	if name != n.o.Name {
		p := n.peers[name]
		if p == nil || !n.recently(p.heard) {
			return "it is not heard"
		}
		ready, well = p.ready, p.well
	} else if u.stranger != "" && n.owners[u.name] == nil {
		return u.stranger + " has it, which is not of this fleet"
	}
	if !ready {
		return "its gate is closed"
	}
	at := m.value.place(u.addr)
	switch {
	case at < 0:
		return "none of its devices has a network with " + u.name
	case !isWell(well, at) && n.someWell(u.addr):
		return "its network is cut off"
	}
	return m.value.Lacks(u.addr, force)
}

// movesTo says whether a unit is to be moved to a node: that goes for one with weight 0, too.
func (n *Node) movesTo(name string, u *unit) bool {
	return slices.ContainsFunc(n.together(u), func(each *unit) bool { m := n.moves[each.name]; return m != nil && m.value.To == name })
}

// isWell says whether the network of a node's address, the one at a place, is well by what the node tells. Of those that it tells nothing
// about, it is taken to be.
func isWell(well uint16, at int) bool { return at >= told || well>>at&1 == 1 }

// someWell says whether the network of a VIP is well on any node. If it is on none, no other node is better than one that is cut off.
func (n *Node) someWell(a netip.Addr) bool {
	for name, m := range n.members {
		well := n.well()
		if name != n.o.Name {
			p := n.peers[name]
			if p == nil || !n.recently(p.heard) {
				continue
			}
			well = p.well
		}
		if at := m.value.place(a); at >= 0 && isWell(well, at) {
			return true
		}
	}
	return false
}

// candidates are the nodes that can take a unit, best first: the one that has others of its group, then as the policy prefers, then by
// the fewest VIPs for their weight, then by rendezvous. The policy of a group is that of its first VIP.
func (n *Node) candidates(u *unit) []string {
	u = n.together(u)[0]
	leader := n.leader(u)
	var can []string
	for name := range n.members {
		if n.cannot(name, u) == "" {
			can = append(can, name)
		}
	}
	load := func(name string) (vips, weight int) { return n.counted[name], n.members[name].value.Weight }
	slices.SortFunc(can, func(a, b string) int {
		return cmp.Or(other(a, leader)-other(b, leader), Better(u.name, u.policy.Prefer, a, b, load))
	})
	return can
}

// Better compares two nodes that could take a VIP; the better one is less. First comes what is preferred, then the fewest VIPs for the
// weight of the node, then rendezvous.
func Better(vip string, prefer []string, a, b string, load func(node string) (vips, weight int)) int {
	hasA, weightA := load(a)
	hasB, weightB := load(b)
	fewer := hasA*max(weightB, 1) - hasB*max(weightA, 1) // hasA/weightA < hasB/weightB
	return cmp.Or(Preferred(prefer, a)-Preferred(prefer, b), compare(fewer, score(vip, b), score(vip, a), a, b))
}

// other is 1 for all names but one.
func other(name, one string) int {
	if name == one {
		return 0
	}
	return 1
}

// Preferred is the place of a node among those that a VIP prefers, from 0; that of all others is behind the last.
func Preferred(prefer []string, name string) int {
	if i := slices.Index(prefer, name); i >= 0 {
		return i
	}
	return len(prefer)
}

// ranks are this node's places for the groups that were looked at in one go: what is counted meanwhile must not part them.
type ranks map[string]int

// rank is this node's place among those that can take a unit; -1 means it can't. The unit then counts for the best.
func (n *Node) rank(u *unit, seen ranks) int {
	if r, ok := seen[u.policy.Group]; ok {
		return r
	}
	can := n.candidates(u)
	if len(can) > 0 {
		n.counted[can[0]] += len(n.together(u))
	}
	r := slices.Index(can, n.o.Name)
	if u.policy.Group != "" {
		seen[u.policy.Group] = r
	}
	return r
}

// reachesEtcd says whether a node can be given a unit: one that does not reach etcd would not hear of it, and nobody would answer meanwhile.
func (n *Node) reachesEtcd(name string) bool { p := n.peers[name]; return p == nil || !p.away }

// best is the best node to give a unit to; "" means there is none.
func (n *Node) best(u *unit) string {
	for _, name := range n.candidates(u) {
		if name != n.o.Name && n.reachesEtcd(name) {
			return name
		}
	}
	return ""
}
