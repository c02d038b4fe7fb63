package failover

import (
	"net/netip"
	"slices"
	"time"
)

// Status is how a node is at a moment.
type Status struct {
	Session ID // 0 means etcd has none
	// Obstructed: etcd has a session of another machine under this node's name, which can't be replaced.
	Obstructed bool
	Gate       string
	// Left is how long the session is confirmed from now.
	Left time.Duration
	// Confirmed has the age of each juror's newest confirmation; -1 means there is none.
	Confirmed map[string]time.Duration
	Bound     []netip.Addr
	// Free are the VIPs that no live session owns, or one that is silent and may not be buried.
	Free []netip.Addr
	// Waiting are the nodes whose silent sessions may not be buried, as too few of their jurors are heard: with the jurors, and
	// themselves, that are silent.
	Waiting map[string][]string
	// Heard says of each other node on which of this node's addresses (Member.At) it was heard lately.
	Heard map[string][]bool
	// Strangers are the MACs of hosts outside of the fleet that have VIPs which this node would take otherwise.
	Strangers map[netip.Addr]string
}

// Status says how the node is.
func (n *Node) Status(now Time) Status {
	n.now = now
	s := Status{
		Gate: [...]string{"closed", "closing", "opening", "open"}[n.gate], Confirmed: map[string]time.Duration{}, Strangers: map[netip.Addr]string{},
		Waiting: map[string][]string{}, Heard: map[string][]bool{},
	}
	if n.my.live {
		s.Session, s.Left = n.my.id, max(n.my.deadline.Since(now), 0)
	}
	old := n.sessions[n.o.Name]
	s.Obstructed = !n.my.live && old != nil && now.Since(old.known) > 2*n.o.Timing.Silence && !n.replaces(old)
	for _, j := range n.my.jury {
		if sent := n.my.confirmed[j]; sent > 0 {
			s.Confirmed[j] = now.Since(sent)
		} else if j != n.o.Name {
			s.Confirmed[j] = -1
		}
	}
	for _, u := range n.free {
		s.Free = append(s.Free, u.addr)
	}
	for _, u := range n.order {
		if u.stranger != "" && n.owners[u.name] == nil {
			s.Strangers[u.addr] = u.stranger
		}
		if u.bound {
			s.Bound = append(s.Bound, u.addr)
		}
	}
	n.waiting(&s)
	for name := range n.members {
		if p := n.peers[name]; name != n.o.Name {
			on := make([]bool, len(n.o.Member.At))
			for i := range min(len(on), len(n.reached)) {
				on[i] = p != nil && n.recently(p.on[i])
			}
			s.Heard[name] = on
		}
	}
	return s
}

// waiting adds the nodes whose VIPs rest until an operator says that they are off. A node that is not confirmed can't tell.
func (n *Node) waiting(s *Status) {
	if !n.passes() {
		return
	}
	for node, r := range n.sessions {
		j := n.juror(node, r.value.ID)
		t := r.value.Timing
		if node == n.o.Name || r.odd || j == nil || !j.Silent(n.now, n.o.Started, t) || n.now.Since(r.known) < t.Silence {
			continue
		}
		silent, heard := []string{node}, 0
		for _, name := range r.value.Jury {
			switch p := n.peers[name]; {
			case name == node:
			case name == n.o.Name, p != nil && n.recently(p.heard):
				heard++
			default:
				silent = append(silent, name)
			}
		}
		owned := n.owned(node, r.value.ID)
		if heard >= Burying(len(r.value.Jury)) || len(owned) == 0 {
			continue
		}
		slices.Sort(silent)
		s.Waiting[node] = silent
		for _, u := range owned {
			s.Free = append(s.Free, u.addr)
		}
	}
}
