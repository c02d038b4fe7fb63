package ownership

import (
	"net/netip"
	"time"
)

// Status is how a node is at a moment.
type Status struct {
	Session ID // 0 means etcd has none
	Gate    string
	// Left is how long the session is confirmed from now.
	Left time.Duration
	// Confirmed has the age of each juror's newest confirmation; -1 means there is none.
	Confirmed map[string]time.Duration
	Bound     []netip.Addr
	// Free are the VIPs that no live session owns.
	Free []netip.Addr
	// Strangers are the MACs of hosts outside of the fleet that have VIPs which this node would take otherwise.
	Strangers map[netip.Addr]string
}

// Status says how the node is.
func (n *Node) Status(now Time) Status {
	s := Status{Gate: [...]string{"closed", "closing", "opening", "open"}[n.gate], Confirmed: map[string]time.Duration{}, Strangers: map[netip.Addr]string{}}
	if n.my.live {
		s.Session, s.Left = n.my.id, max(n.my.deadline.Since(now), 0)
	}
	for _, j := range n.my.jury {
		if sent := n.my.confirmed[j]; sent > 0 {
			s.Confirmed[j] = now.Since(sent)
		} else if j != n.o.Name {
			s.Confirmed[j] = -1
		}
	}
	for _, u := range n.free {
		s.Free = append(s.Free, u.addrs...)
	}
	for _, u := range n.order {
		if u.stranger != "" && n.owners[u.name] == nil {
			s.Strangers[u.addrs[0]] = u.stranger
		}
		if u.bound {
			s.Bound = append(s.Bound, u.addrs...)
		}
	}
	return s
}
