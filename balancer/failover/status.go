package failover

import (
	"net/netip"
	"time"

	"vipd/balancer/failover/local"
)

// Status is the state of a node at a point in time.
type Status struct {
	Session ID // 0 if there is no session in etcd
	// Obstructed reports whether another machine has a session under this node's name in etcd,
	// which this node can't replace.
	Obstructed bool
	Gate       string
	// Left is how much longer the session is confirmed.
	Left time.Duration
	// Confirmed maps each juror to the age of its newest confirmation, or -1 if there was none.
	Confirmed map[string]time.Duration
	Bound     []netip.Addr
	// Free lists the VIPs that no live session owns, and the VIPs whose owner is silent but whose
	// session may not be revoked.
	Free []netip.Addr
	// Waiting contains the nodes whose silent sessions may not be revoked, because too few of their
	// jurors are live. It maps each such node to the silent members of its jury, which confirms its
	// session. The node itself is a member of its jury.
	Waiting map[string][]string
	// Heard reports, for each other node and each of this node's addresses (Member.At), whether a
	// heartbeat from the node arrived recently at the address.
	Heard map[string][]bool
	// Strangers maps each VIP that this node does not claim because a host outside the fleet has it
	// to the MAC of that host.
	Strangers map[netip.Addr]string
}

// Status returns the node's state.
func (n *Node) Status(now local.Time) Status {
	n.now = now
	s := Status{
		Obstructed: n.session.obstructed(), Gate: n.gate.state.String(), Confirmed: n.session.confirmations(), Strangers: n.takeover.strangers(),
		Heard: map[string][]bool{},
	}
	if n.session.live {
		s.Session, s.Left = n.session.id, max(n.session.deadline.Since(now), 0)
	}
	for _, v := range n.takeover.free {
		s.Free = append(s.Free, v.addr)
	}
	for _, v := range n.vips.order {
		if v.bound {
			s.Bound = append(s.Bound, v.addr)
		}
	}
	waiting, resting := n.takeover.waiting()
	s.Waiting, s.Free = waiting, append(s.Free, resting...)
	for name := range n.etcd.members {
		if name != n.o.Name {
			s.Heard[name] = n.peers.heardOn(name)
		}
	}
	return s
}
