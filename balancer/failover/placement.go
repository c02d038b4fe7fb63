package failover

import "cmp"

// placement decides where this node's VIPs should move.
type placement struct{ *parts }

// requested is the reason recorded when an operator moves a VIP to a node that can serve it.
const requested = "move"

// forced is the reason recorded when an operator moves a VIP to a node that can't serve it. The VIP
// stays there until it is moved again or the node can't own it.
const forced = "force"

func (p placement) byForce(v *vip) bool { return p.etcd.owners[v.name].value.Why == forced }

// destination returns the node to which this node's VIP v should now move, and the reason. It
// returns "" if the VIP stays.
func (p placement) destination(v *vip) (to, why string) {
	leader := p.ranking.leader(v)
	switch {
	case p.gate.stopping:
		return p.ranking.best(v), "stop"
	case p.o.Member.Standby:
		return p.ranking.best(v), "standby"
	case p.ranking.cut(v):
		return p.ranking.best(v), "network"
	case leader != "" && leader != p.o.Name && p.peers.reachesEtcd(leader) && p.ranking.blockReason(leader, v, false) == "":
		return leader, "group" // even if flapping, because a VIP may be useless without its group
	case v.flapping(p.now):
		return "", ""
	case p.o.Member.Lacks(v.addr, p.byForce(v)) != "":
		return p.ranking.best(v), "health"
	case p.byForce(v):
		return "", ""
	}
	return p.preempt(v), "preempt"
}

// move returns the destination of a requested move and the reason to record, or the reason for a
// refusal.
func (p placement) move(v *vip, m Move) (to, why, refusal string) {
	if m.To == "" {
		if to = p.ranking.best(v); to == "" {
			return "", "", "no other node can take the VIP"
		}
		return to, requested, ""
	}
	if m.To == p.o.Name {
		return "", "", "the node already has the VIP"
	}
	no := p.ranking.blockReason(m.To, v, m.Force)
	if no == "" && !p.peers.reachesEtcd(m.To) {
		no = "the node can't reach etcd"
	}
	switch {
	case no != "":
		return "", "", m.To + " can't take the VIP: " + no
	case p.ranking.blockReason(m.To, v, false) != "":
		return m.To, forced, ""
	}
	return m.To, requested, ""
}

// preempt returns a node that the policy prefers to this node, and that has been healthy for the
// policy's Preempt duration. It returns "" if the VIP stays.
func (p placement) preempt(v *vip) string {
	prefer := v.policy.Prefer
	if v.policy.Preempt <= 0 || len(prefer) == 0 {
		return ""
	}
	best := p.ranking.best(v)
	if best == "" || Preferred(prefer, best) >= Preferred(prefer, p.o.Name) {
		v.better = 0
		return ""
	}
	v.better = cmp.Or(v.better, p.now)
	if p.now.Since(v.better) < v.policy.Preempt {
		return ""
	}
	return best
}

// requestedBy returns the text of the operator's request that moves a VIP for the reason why (see
// Request.String). It returns "" if no operator requested the move.
func (p placement) requestedBy(v *vip, why string) string {
	switch why {
	case "standby":
		return p.o.Member.StandbyBy.String()
	case requested, forced:
		for _, each := range p.vips.together(v) {
			if m := p.etcd.moves[each.name]; m != nil {
				return m.value.String()
			}
		}
	}
	return ""
}
