package failover

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"
)

// rankDelay is the time that a candidate waits for each better candidate to act first.
const rankDelay = 150 * time.Millisecond

// score ranks nodes for a VIP, or jurors for a node. All hosts compute the same score.
func score(subject, node string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(subject + "/" + node))
	x := h.Sum32()
	x = (x ^ x>>16) * 0x85ebca6b
	x = (x ^ x>>13) * 0xc2b2ae35
	return x ^ x>>16
}

// compare orders two nodes by number, the result of an earlier comparison, then by score, then by
// name.
func compare(number int, scoreA, scoreB uint32, nameA, nameB string) int {
	return cmp.Or(number, cmp.Compare(scoreA, scoreB), cmp.Compare(nameA, nameB))
}

// ranking ranks the nodes that could hold a VIP.
type ranking struct {
	*env
	etcd  *view
	gate  *gate
	peers *peers
	vips  *vips
	// counted is the number of VIPs that each node owns.
	counted map[string]int
}

// blockReason returns the reason why a node can't hold a VIP and the other VIPs of its group now,
// or "". If force is set, a node that can hold the VIP need not be able to serve it.
func (r *ranking) blockReason(name string, v *vip, force bool) string {
	for _, each := range r.vips.together(v) {
		if why := r.whyNotAlone(name, each, force); why != "" {
			return why
		}
	}
	return ""
}

func (r *ranking) whyNotAlone(name string, v *vip, force bool) string {
	m := r.etcd.members[name]
	switch {
	case m == nil || m.unreadable:
		return "it is not registered"
	case r.etcd.sessions[name] == nil:
		return "it has no session"
	case m.value.Standby || name == r.o.Name && r.o.Member.Standby:
		return "it is on standby"
	case r.etcd.fences[name] != nil:
		return "it is fenced"
	case m.value.Weight == 0 && !r.despiteWeight(name, v):
		return "its weight is 0"
	}
	ready, well := r.gate.ready(), r.peers.well()
	if name != r.o.Name {
		if !r.peers.hasHeartbeat(name) {
			return "its heartbeats do not arrive"
		}
		p := r.peers.peer(name)
		ready, well = p.ready, p.well
	} else if v.stranger != "" && r.etcd.owners[v.name] == nil {
		return "a host outside the fleet has the VIP: " + v.stranger
	}
	if !ready {
		return "its gate is closed"
	}
	at := m.value.place(v.addr)
	switch {
	case at < 0:
		return "none of its devices is in the network of " + v.name
	case !isWell(well, at) && r.wellAnywhere(v.addr):
		return "it is cut off from the VIP's network"
	}
	return m.value.Lacks(v.addr, force)
}

// despiteWeight reports whether a node may hold a VIP although its weight is 0. This requires that
// the policy prefers the node, that the node is the group's leader, or that an operator has
// requested to move a VIP of the group to the node.
func (r *ranking) despiteWeight(name string, v *vip) bool {
	together := r.vips.together(v)
	movesThere := func(each *vip) bool { m := r.etcd.moves[each.name]; return m != nil && m.value.To == name }
	return slices.Contains(together[0].policy.Prefer, name) || slices.ContainsFunc(together, movesThere) || r.leader(v) == name
}

// leader returns the node to which the VIPs of a group move, which is the owner of the first VIP
// that has an owner. It returns "" if no VIP has an owner.
func (r *ranking) leader(v *vip) string {
	for _, each := range r.vips.groups[v.policy.Group] {
		if o := r.etcd.owners[each.name]; o != nil && !o.unreadable && r.etcd.alive(o.value) {
			return o.value.Node
		}
	}
	return ""
}

// isWell reports whether a node says that the network of its address with the index at works.
// Networks that the node does not report are assumed to work.
func isWell(well uint16, at int) bool { return at >= reported || well>>at&1 == 1 }

// wellAnywhere reports whether the network of a VIP works on any node. If it works on none, a node
// that is cut off is as good as any other.
func (r *ranking) wellAnywhere(a netip.Addr) bool {
	for name, m := range r.etcd.members {
		well := r.peers.well()
		if name != r.o.Name {
			if !r.peers.hasHeartbeat(name) {
				continue
			}
			well = r.peers.peer(name).well
		}
		if at := m.value.place(a); at >= 0 && isWell(well, at) {
			return true
		}
	}
	return false
}

// cut reports whether a VIP's network works on another node but not on this node.
func (r *ranking) cut(v *vip) bool {
	at := r.o.Member.place(v.addr)
	return at >= 0 && !isWell(r.peers.well(), at) && r.wellAnywhere(v.addr)
}

// candidates returns the nodes that can own a VIP, best first. The node with the other VIPs of the
// group is first, and the other nodes follow in the order of [Better]. The policy of a group is the
// policy of its first VIP.
func (r *ranking) candidates(v *vip) []string {
	v = r.vips.together(v)[0]
	leader := r.leader(v)
	var can []string
	for name := range r.etcd.members {
		if r.blockReason(name, v, false) == "" {
			can = append(can, name)
		}
	}
	load := func(name string) (vips, weight int) { return r.counted[name], r.etcd.members[name].value.Weight }
	slices.SortFunc(can, func(a, b string) int {
		return cmp.Or(oneUnlessEqual(a, leader)-oneUnlessEqual(b, leader), Better(v.name, v.policy.Prefer, a, b, load))
	})
	return can
}

// best returns the best other node for a VIP, or "".
func (r *ranking) best(v *vip) string {
	for _, name := range r.candidates(v) {
		if name != r.o.Name && r.peers.reachesEtcd(name) {
			return name
		}
	}
	return ""
}

// ranks maps each group to this node's rank for its VIPs. All VIPs of a group get the stored rank,
// so later changes to the counts can't separate them.
type ranks map[string]int

// rank returns this node's index among the candidates for a VIP; -1 means that this node can't hold
// the VIP. It also counts the VIP and its group as VIPs of the best candidate.
func (r *ranking) rank(v *vip, seen ranks) int {
	if rank, ok := seen[v.policy.Group]; ok {
		return rank
	}
	can := r.candidates(v)
	if len(can) > 0 {
		r.counted[can[0]] += len(r.vips.together(v))
	}
	rank := slices.Index(can, r.o.Name)
	if v.policy.Group != "" {
		seen[v.policy.Group] = rank
	}
	return rank
}

// Better compares two nodes that could hold a VIP; the better node is less. The order is: preferred
// nodes, then the fewest VIPs for the node's weight, then rendezvous.
func Better(vip string, prefer []string, a, b string, load func(node string) (vips, weight int)) int {
	hasA, weightA := load(a)
	hasB, weightB := load(b)
	fewer := hasA*max(weightB, 1) - hasB*max(weightA, 1) // hasA/weightA < hasB/weightB
	return cmp.Or(Preferred(prefer, a)-Preferred(prefer, b), compare(fewer, score(vip, b), score(vip, a), a, b))
}

// oneUnlessEqual returns 0 if the names are equal, and otherwise 1.
func oneUnlessEqual(name, same string) int {
	if name == same {
		return 0
	}
	return 1
}

// Preferred returns the index of a node in prefer, or the length of prefer for all other nodes.
func Preferred(prefer []string, name string) int {
	if i := slices.Index(prefer, name); i >= 0 {
		return i
	}
	return len(prefer)
}
