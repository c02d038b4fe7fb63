package failover

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"
)

// rankDelay is how long a candidate waits for each better candidate to act first.
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

// compare orders two nodes by the result number of an earlier comparison, then by score, then by
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
	// counted maps each node to the number of VIPs that it owns.
	counted map[string]int
}

// blockReason returns the reason why a node can't currently hold a VIP and the other VIPs in its
// group, or "". If force is set, the node need not be able to serve the VIP.
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

// despiteWeight reports whether a node may hold a VIP although its weight is 0. It may if the
// policy prefers the node, if the node is the group's leader, or if an operator has requested to
// move a VIP in the group to the node.
func (r *ranking) despiteWeight(name string, v *vip) bool {
	together := r.vips.together(v)
	movesThere := func(each *vip) bool { m := r.etcd.moves[each.name]; return m != nil && m.value.To == name }
	return slices.Contains(together[0].policy.Prefer, name) || slices.ContainsFunc(together, movesThere) || r.leader(v) == name
}

// leader returns the node to which the VIPs in v's group move: the owner of the group's first VIP
// that has an owner. It returns "" if no VIP has an owner.
func (r *ranking) leader(v *vip) string {
	for _, each := range r.vips.groups[v.policy.Group] {
		if o := r.etcd.owners[each.name]; o != nil && !o.unreadable && r.etcd.alive(o.value) {
			return o.value.Node
		}
	}
	return ""
}

// isWell reports whether the network of a node's address number at works, according to the node's
// Message.Well. Networks that the node does not report are assumed to work.
func isWell(well uint16, at int) bool { return at >= reported || well>>at&1 == 1 }

// wellAnywhere reports whether a VIP's network works on any node. If it works on no node, a cut-off
// node is as good as any other.
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

// cut reports whether a VIP's network works on another node, but not on this node.
func (r *ranking) cut(v *vip) bool {
	at := r.o.Member.place(v.addr)
	return at >= 0 && !isWell(r.peers.well(), at) && r.wellAnywhere(v.addr)
}

// candidates returns the nodes that can own a VIP, best first. The node that owns the other VIPs in
// the group is first. The remaining nodes follow in the order of [Better]. A group's policy is the
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

// ranks maps each group to this node's rank for the group. All VIPs in a group get this rank, so
// later changes to the counts can't separate them.
type ranks map[string]int

// rank returns this node's index among the candidates for a VIP, or -1 if this node can't hold the
// VIP. It also counts the VIP and its group as VIPs of the best candidate.
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

// Better compares two nodes that could hold a VIP. It returns a negative number if the node a is
// better. Preferred nodes are best, then the nodes with the fewest VIPs for their weight, then
// rendezvous hashing decides.
func Better(vip string, prefer []string, a, b string, load func(node string) (vips, weight int)) int {
	hasA, weightA := load(a)
	hasB, weightB := load(b)
	fewer := hasA*max(weightB, 1) - hasB*max(weightA, 1) // hasA/weightA < hasB/weightB
	return cmp.Or(Preferred(prefer, a)-Preferred(prefer, b), compare(fewer, score(vip, b), score(vip, a), a, b))
}

func oneUnlessEqual(name, same string) int {
	if name == same {
		return 0
	}
	return 1
}

// Preferred returns the index of a node in prefer, or len(prefer) if the node is not in prefer.
func Preferred(prefer []string, name string) int {
	if i := slices.Index(prefer, name); i >= 0 {
		return i
	}
	return len(prefer)
}
