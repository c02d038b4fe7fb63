package vrrp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// cause is the reason for a state change, as a label value for metrics and a text for operators.
type cause struct{ word, text string }

// Change is a change of a group's state.
type Change struct {
	At   local.Time `json:"at"`
	From State      `json:"from"`
	To   State      `json:"to"`
	Why  string     `json:"why"` // a label value for metrics
	Text string     `json:"text"`
}

// history records the changes to a router's state.
type history struct {
	changes []Change
	// counts counts the changes since the process started.
	counts []ChangeCount
}

// maxChanges is the number of changes that are remembered.
const maxChanges = 10

func (h *history) add(c Change) {
	if h.changes = append(h.changes, c); len(h.changes) > maxChanges {
		h.changes = slices.Delete(h.changes, 0, 1)
	}
	i := slices.IndexFunc(h.counts, func(n ChangeCount) bool { return n.To == c.To && n.Why == c.Why })
	if i < 0 {
		i = len(h.counts)
		h.counts = append(h.counts, ChangeCount{To: c.To, Why: c.Why})
	}
	h.counts[i].Count++
}

// latest returns the cause of the last change.
func (h *history) latest() cause {
	last := h.changes[len(h.changes)-1]
	return cause{last.Why, last.Text}
}

// Status is a node's state at a point in time.
type Status struct {
	At     local.Time    `json:"at"`
	Gate   string        `json:"gate"`
	Groups []GroupStatus `json:"groups"`
}

// GroupStatus is a group's state on this host.
type GroupStatus struct {
	Name     string `json:"name"`
	RouterID uint8  `json:"router_id"`
	Version  int    `json:"version"`
	State    State  `json:"state"`
	// Priority is the priority in the next advert: 1 if this host can't serve the VIPs.
	Priority uint8 `json:"priority"`
	// Owner is the address of the router that owns the VIPs. It is Group.Link.Source if this host
	// owns them, and the zero Addr if the owner is unknown.
	Owner netip.Addr `json:"owner"`
	// Left is the time until the next step, which is an advert if Active, and a takeover if Backup.
	Left time.Duration `json:"left"`
	// Advertised is the age of the last advert of this tenure, or -1 if there was none.
	Advertised time.Duration `json:"advertised"`
	Bound      []netip.Addr  `json:"bound,omitempty"`
	// Peers lists the group's other routers, for unicast. If empty, adverts use multicast.
	Peers    []netip.Addr   `json:"peers,omitempty"`
	Routers  []RouterStatus `json:"routers,omitempty"`
	Problems []string       `json:"problems,omitempty"`
	// Changes lists the last changes. The newest is last.
	Changes  []Change `json:"changes,omitempty"`
	Counters Counters `json:"counters"`
}

// ChangeCount is the number of times that a group changed to a state for a reason.
type ChangeCount struct {
	To    State  `json:"to"`
	Why   string `json:"why"`
	Count uint64 `json:"count"`
}

// Counters holds counters since the start of the process.
type Counters struct {
	Sent    uint64            `json:"sent"`
	Dropped map[Reason]uint64 `json:"dropped,omitempty"`
	Changes []ChangeCount     `json:"changes,omitempty"`
	// Late is the longest delay in sending an advert.
	Late time.Duration `json:"late"`
}

// RouterStatus is the state of another router in a group.
type RouterStatus struct {
	Addr     netip.Addr    `json:"addr"`
	Received uint64        `json:"received"`
	Priority uint8         `json:"priority"`
	Interval time.Duration `json:"interval"`
	Checksum Checksum      `json:"checksum"`
	Addrs    []netip.Addr  `json:"addrs,omitempty"`
	// Age is the age of the router's last accepted advert, or -1 if there was none.
	Age time.Duration `json:"age"`
	// Dropped is the reason why the router's last packet was dropped, or "".
	Dropped Reason `json:"dropped,omitempty"`
	// Differs describes how the router's configuration differs from the group's configuration on
	// this host.
	Differs string `json:"differs,omitempty"`
	// Named reports whether metrics name the router. Only the first few routers are named, because
	// any host on the network can pretend to be many.
	Named bool `json:"named,omitempty"`
}

// Status returns the node's state.
func (n *Node) Status(now local.Time) Status {
	s := Status{At: now, Gate: n.gate.String()}
	for _, r := range n.routers {
		s.Groups = append(s.Groups, r.status(now))
	}
	return s
}

func (r *router) status(now local.Time) GroupStatus {
	s := GroupStatus{
		Name: r.g.Name, RouterID: r.g.RouterID, Version: r.g.Version, State: r.state, Priority: r.priority(), Left: max(r.due.Since(now), 0),
		Advertised: -1, Bound: slices.Clone(r.bound), Peers: r.g.Link.Peers, Changes: slices.Clone(r.history.changes),
		Counters: Counters{Sent: r.sender.sent, Dropped: map[Reason]uint64{}, Changes: slices.Clone(r.history.counts), Late: r.sender.late},
	}
	for reason, n := range r.peers.drops {
		s.Counters.Dropped[reason] = n
	}
	if r.tenure.sent > 0 {
		s.Advertised = now.Since(r.tenure.sent)
	}
	o := r.peers.owner
	switch {
	case r.state == Active:
		s.Owner = r.g.Link.Source
	case o != nil && o.advert.Priority != resignPriority && now.Since(o.at) <= r.g.DownTime(unfitPriority, o.advert.Interval):
		s.Owner = o.addr
	}
	for _, p := range r.peers.sorted() {
		s.Routers = append(s.Routers, p.status(now, &r.g))
	}
	s.Problems = r.problems(now)
	return s
}

func (p *peer) status(now local.Time, g *Group) RouterStatus {
	s := RouterStatus{Addr: p.addr, Received: p.received, Checksum: p.sum, Age: -1, Differs: p.differs(g), Named: p.named}
	if a := p.advert; a != nil {
		s.Priority = a.Priority
		s.Interval = a.Interval
		s.Addrs = a.Addrs
		s.Age = now.Since(p.at)
	}
	if p.drop != nil && p.droppedAt > p.at {
		s.Dropped = p.drop.Reason
	}
	return s
}

// problemKept is how long a problem is reported after its last sign, such as a router's last
// packet.
const problemKept = time.Minute

// problems describes configuration errors that an operator should fix.
func (r *router) problems(now local.Time) (all []string) {
	if r.fitness.why != "" {
		all = append(all, fmt.Sprintf("%s has priority 1 here: %s", r.g.Name, r.fitness.why))
	}
	if r.witness.lost {
		all = append(all, fmt.Sprintf("%s has priority 1 here: no host of ownership.reach answers", r.g.Name))
	}
	if r.witness.blocked {
		all = append(all, fmt.Sprintf("%s has no owner here: no host of ownership.reach answers", r.g.Name))
	}
	if y := &r.peers.yielded; y.text != "" {
		all = append(all, fmt.Sprintf("this host leaves %s to another router: %s", r.g.Name, y.text))
	}
	if text := r.sender.problem(now, &r.g); text != "" {
		all = append(all, text)
	}
	var rival *peer
	if r.state == Active {
		rival = r.tenure.rivals.present(now, &r.g)
	}
	if rival != nil {
		all = append(all, rival.ignores(&r.g))
	}
	for _, p := range r.peers.sorted() {
		if p == rival || r.peers.yielded.text != "" {
			continue
		}
		if d := p.differs(&r.g); d != "" && now.Since(max(p.at, p.droppedAt)) < problemKept {
			all = append(all, fmt.Sprintf("%s and %s differ in %s: %s", p.addr, r.g.Link.Source, r.g.Name, d))
		}
	}
	return all
}
