package owner

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover"
	"vipd/cmd/internal/api"
)

// answer writes the status of the owner. Vipd knows the VIPs; others get them, too.
func (o *Owner) answer(w http.ResponseWriter, vips bool) {
	s := api.OwnerStatus{Node: o.o.Node, Gate: "closed", Hindered: o.o.Hindered}
	o.journal.describe(&s)
	if report := o.daemon.last(); vips && report != nil {
		s.VIPs = report.VIPs
	}
	if c := o.core.Load(); c != nil {
		c.describe(&s)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s) // the client has gone
}

// describe adds the core's state to a status.
func (c *core) describe(s *api.OwnerStatus) {
	got := make(chan failover.Status, 1)
	c.tell(func(now failover.Time) []failover.Action {
		n := c.node.Status(now)
		s.Peers, s.Unplaced = c.peers(n.Heard), c.layout.Unplaced()
		got <- n
		return nil
	})
	select {
	case n := <-got:
		if n.Session != 0 {
			s.Session = n.Session.String()
		}
		if n.Obstructed {
			s.Problems = append(s.Problems, obstructed(c.o.Node))
		}
		s.Unowned, s.Waiting = n.Free, n.Waiting
		for _, a := range slices.SortedFunc(maps.Keys(n.Strangers), netip.Addr.Compare) {
			s.Problems = append(s.Problems, fmt.Sprintf("%s is not taken: a host outside the fleet has it, %s", a, n.Strangers[a]))
		}
		s.Gate, s.Left, s.Bound, s.Confirmed = n.Gate, n.Left.Seconds(), n.Bound, map[string]float64{}
		for node, age := range n.Confirmed {
			s.Confirmed[node] = max(age.Seconds(), -1)
		}
	case <-c.ended:
	}
	c.etcd.describe(s)
	absent := c.worker.absent.reasons()
	for _, a := range slices.SortedFunc(maps.Keys(absent), netip.Addr.Compare) {
		s.Problems = append(s.Problems, fmt.Sprintf("%s is not here: %s", a, absent[a]))
	}
	s.Bound = slices.DeleteFunc(s.Bound, func(a netip.Addr) bool { return absent[a] != "" })
	var rivals []string
	s.Rivals, rivals = c.rivals.list()
	s.Problems = append(s.Problems, rivals...)
	s.Announced = c.worker.kernel.Announced()
	s.Foreign, s.Late = c.link.Foreign(), time.Duration(c.worker.gate.late.Load()).Seconds()
	if c.link.Intruded() {
		s.Problems = append(s.Problems, "heartbeats come that are signed with another key, and count for nothing: another fleet has addresses of this one, or a host does not follow etcd")
	}
}

// obstructed describes what to do about a session of another machine.
func obstructed(node string) string {
	return fmt.Sprintf("this host can own no VIPs, because etcd has a session of another machine named %[1]s: if that one runs, give one of "+
		"the two another name; if it is off, stop vipd owner here for 15 s, use \"vipctl node fence %[1]s --is-off\", and start it", node)
}

// peers are the other nodes, on each network that this host shares with them.
func (c *core) peers(heard map[string][]bool) (all []api.OwnerPeer) {
	for _, node := range slices.Sorted(maps.Keys(heard)) {
		for i, up := range heard[node] {
			if to := c.link.Reach(i, c.node.Addresses(node)); len(to) > 0 {
				all = append(all, api.OwnerPeer{Node: node, Network: c.link.Network(i), Addresses: to, Up: up})
			}
		}
	}
	return all
}
