package failover

import "cmp"

// placement decides which of the VIPs of this node belong elsewhere.
type placement struct{ *parts }

// forced is why a VIP is on a node that could not serve it: a person moved it there. It stays there
// until it is moved, or can't be there.
const forced = "force"

func (p placement) byForce(v *vip) bool { return p.etcd.owners[v.name].value.Why == forced }

// destination returns the node that a VIP of this node should go to now, and why; "" means it
// stays.
func (p placement) destination(v *vip) (to, why string) {
	leader := p.ranking.leader(v)
	switch {
	case p.gate.stopping:
		return p.ranking.best(v), "stop"
	case p.o.Member.Standby:
		return p.ranking.best(v), "standby"
	case p.ranking.cut(v):
		return p.ranking.best(v), "network"
	case leader != "" && leader != p.o.Name && p.peers.reachesEtcd(leader) && p.ranking.whyNot(leader, v, false) == "":
		return leader, "group" // however often it has moved: apart from its group it may be of no use
	case v.flapping(p.now):
		return "", ""
	case p.o.Member.Lacks(v.addr, p.byForce(v)) != "":
		return p.ranking.best(v), "health"
	case p.byForce(v):
		return "", ""
	}
	return p.preempt(v), "preempt"
}

// move returns the node that a person moves a VIP to, and why, or the reason for refusing the move.
func (p placement) move(v *vip, m Move) (to, why, refusal string) {
	if m.To == "" {
		if to = p.ranking.best(v); to == "" {
			return "", "", "no other node can take it"
		}
		return to, "move", ""
	}
	if m.To == p.o.Name {
		return "", "", "it is there"
	}
	no := p.ranking.whyNot(m.To, v, m.Force)
	if no == "" && !p.peers.reachesEtcd(m.To) {
		no = "it does not reach etcd"
	}
	switch {
	case no != "":
		return "", "", m.To + " can't take it: " + no
	case p.ranking.whyNot(m.To, v, false) != "":
		return m.To, forced, ""
	}
	return m.To, "move", ""
}

// preempt returns a node that the policy prefers, after it has been healthy for the policy's time.
// "" means that the VIP stays.
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

// requestedBy returns who requested that a VIP be given away and the reason, if a person did.
func (p placement) requestedBy(v *vip, why string) string {
	switch why {
	case "standby":
		return p.o.Member.StandbyBy.String()
	case "move", forced:
		for _, each := range p.vips.together(v) {
			if m := p.etcd.moves[each.name]; m != nil {
				return m.value.String()
			}
		}
	}
	return ""
}
