package failover

import (
	"net/netip"
	"time"

	"vipd/balancer/failover/local"
)

// Status is the state of a node at a point in time.
type Status struct {
	Session ID // 0 if there is no session in etcd
	// Obstructed reports whether etcd contains a session of another machine with this node's name,
	// which can't be replaced.
	Obstructed bool
	Gate       string
	// Left is the time for which the session is still confirmed.
	Left time.Duration
	// Confirmed maps each juror to the age of its newest confirmation, or -1 if there was none.
	Confirmed map[string]time.Duration
	Bound     []netip.Addr
	// Free lists the VIPs that no live session owns, and the VIPs whose owner is silent but may not
	// be revoked.
	Free []netip.Addr
	// Waiting contains the nodes whose silent sessions may not be revoked, because too few of their
	// jurors are live. It maps each node to the silent members of its jury, including the node
	// itself.
	Waiting map[string][]string
	// Heard reports, for each other node and each address of this node (Member.At), whether a
	// heartbeat of the other node arrived there recently.
	Heard map[string][]bool
	// Strangers maps VIPs that this node would otherwise claim to the MACs of hosts outside the
	// fleet that have them.
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
