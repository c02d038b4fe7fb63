package vrrp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// Node represents this host in all groups. One goroutine calls its methods, which return the
// actions to perform, in order.
type Node struct {
	*env
	routers []*router
	// leaving holds the routers of removed groups whose VIPs are being unbound.
	leaving []*router
}

// New returns a node. Its gate must be closed and no VIP bound, and the gate must stay open for
// GateTime(groups) after each refresh.
func New(groups []Group) *Node {
	n := &Node{env: &env{gateTime: GateTime(groups)}}
	for i := range groups {
		n.routers = append(n.routers, newRouter(n.env, groups[i]))
	}
	return n
}

// begin starts the processing of an event. After a pause of the process, timers and packets from
// before the pause must not cause a takeover.
func (n *Node) begin(now local.Time) {
	paused := n.now > 0 && now.Since(n.now) > n.maxPause()
	n.now = max(n.now, now)
	if paused {
		n.awake = n.now
	}
	for _, r := range n.routers {
		if paused && (r.state == Backup || r.state == Claiming) {
			r.backUp(cause{"paused", "the process paused"}, r.g.Interval)
		}
		if r.state == Active && n.gate == open && now >= r.deadline() {
			n.lapse(local.NotConfirmed, now.Since(r.tenure.sent))
		}
	}
}

// maxPause is the maximum time between two events. A longer time counts as a pause of the process.
func (n *Node) maxPause() time.Duration {
	d := 2 * MaxGate
	for _, r := range n.routers {
		d = min(d, r.g.Interval/2)
	}
	return d
}

func (n *Node) step() []local.Action {
	for _, r := range n.routers {
		r.step()
	}
	if n.gate == open && !slices.ContainsFunc(n.routers, (*router).owns) {
		n.closeGate()
	}
	return n.flush()
}

// Tick performs the steps that are due. It must be called several times per interval.
func (n *Node) Tick(now local.Time) []local.Action {
	n.begin(now)
	return n.step()
}

// Deadline returns the time until which the sent adverts permit an open gate, or 0 if the gate is
// not needed.
func (n *Node) Deadline() (earliest local.Time) {
	for _, r := range n.routers {
		if r.owns() {
			if d := r.deadline(); earliest == 0 || d < earliest {
				earliest = d
			}
		}
	}
	return earliest
}

// Next returns when the next step is due, or 0 if no step is scheduled. A process that calls Tick
// at that time, instead of at its next regular tick, sends adverts and takes over on time.
func (n *Node) Next() (earliest local.Time) {
	for _, r := range n.routers {
		if r.state != Init && r.due > n.now && (earliest == 0 || r.due < earliest) {
			earliest = r.due
		}
	}
	return earliest
}

// Sent processes the result of a Send. If err is not nil, none of the advert's packets was sent.
// The time at is shortly before the first packet was sent.
func (n *Node) Sent(now local.Time, s Send, at local.Time, err error) []local.Action {
	n.begin(now)
	if r := n.find(s.Group); r != nil {
		r.sent(s.number, at, err)
	}
	return n.step()
}

// Received processes a packet that arrived. The group is found by interface, family and router ID.
func (n *Node) Received(now local.Time, d Datagram) []local.Action {
	n.begin(now)
	if d.At > 0 && d.At < n.awake || len(d.Data) < 2 {
		return n.step()
	}
	d.From, d.To = d.From.Unmap().WithZone(""), d.To.Unmap().WithZone("")
	for _, r := range n.routers {
		l := &r.g.Link
		if l.On == d.On && l.Source.Is4() == d.From.Is4() && r.g.RouterID == d.Data[1] && l.Source != d.From {
			r.received(&d)
		}
	}
	return n.step()
}

// Opened processes the result of an OpenGate. It checks the deadline again before it binds VIPs,
// because opening the gate may have been slow.
func (n *Node) Opened(now local.Time, err error) []local.Action {
	n.begin(now)
	if n.gate != opening {
		return n.step()
	}
	n.gate = open
	if err != nil {
		n.do(local.Note{Kind: local.NoteGate, Text: "the gate can't be opened: " + err.Error()})
		for _, r := range n.routers {
			if r.state == Claiming {
				r.backUp(cause{"gate", "the gate can't be opened"}, r.g.Interval)
			}
		}
	}
	return n.step()
}

// Closed processes the completion of a CloseGate. All addresses are then removed, including
// addresses whose Unbind failed.
func (n *Node) Closed(now local.Time) []local.Action {
	n.begin(now)
	if n.gate == closing {
		n.gate = closed
	}
	n.unbound(func(r *router) bool { return r.giving != 0 })
	return n.step()
}

// Lapsed processes a lapse of the gate. The parameter lasts is the duration of the lapse, or 0 if
// unknown. Lapsed must be called before other events at that time, because an advert from a host
// whose gate is closed would keep the VIPs silent.
func (n *Node) Lapsed(now local.Time, why local.Lapse, lasts time.Duration) []local.Action {
	n.begin(now)
	if n.gate == open {
		n.lapse(why, lasts)
	}
	return n.step()
}

// lapse closes an open gate that may have closed because of its timeout. All groups become Backup
// without sending an advert, so other routers take over after a silence.
func (n *Node) lapse(why local.Lapse, lasts time.Duration) {
	n.awake = n.now
	text := "gate closed: " + string(why)
	if lasts > 0 {
		text += " for " + formatSeconds(lasts)
	}
	vips := 0
	for _, r := range n.routers {
		vips += len(r.bound)
		if r.state == Active || r.state == Claiming {
			r.backUp(cause{"lapse", text}, r.g.Interval)
		}
	}
	n.do(local.Note{Kind: local.NoteGate, Text: text, VIPs: vips, Why: string(why)})
	for _, r := range slices.Concat(n.routers, n.leaving) {
		r.bound, r.giving = nil, 0
	}
	n.leaving = nil
	n.closeGate()
}

// Unbound processes the completion of an Unbind.
func (n *Node) Unbound(now local.Time, id int) []local.Action {
	n.begin(now)
	n.unbound(func(r *router) bool { return r.giving == id && id != 0 })
	return n.step()
}

// unbound completes the resignation of the routers that chosen selects, because their addresses are
// now removed.
func (n *Node) unbound(chosen func(*router) bool) {
	for _, r := range slices.Concat(n.routers, n.leaving) {
		if chosen(r) {
			r.resigned()
		}
	}
	n.leaving = slices.DeleteFunc(n.leaving, func(r *router) bool { return r.giving == 0 })
}

// Probed processes the answers to a Probe. The map found contains the MAC of the host that answered
// for each address, if any.
func (n *Node) Probed(now local.Time, _ []netip.Addr, found map[netip.Addr]string) []local.Action {
	n.begin(now)
	for _, r := range n.routers {
		r.probed(found)
	}
	return n.step()
}

// Reached processes an answer from one of a group's witnesses.
func (n *Node) Reached(now local.Time, group string) []local.Action {
	n.begin(now)
	if r := n.find(group); r != nil {
		r.reached()
	}
	return n.step()
}

// Reaching processes a change to a group's witnesses. Earlier answers no longer count.
func (n *Node) Reaching(now local.Time, group string) []local.Action {
	n.begin(now)
	if r := n.find(group); r != nil {
		r.witness = witness{asked: r.now}
	}
	return n.step()
}

// Unwitnessed returns the groups that this host would not take over from a silent owner, because
// none of their witnesses answers.
func (n *Node) Unwitnessed(now local.Time) (groups []string) {
	for _, r := range n.routers {
		if r.unwitnessed(now) {
			groups = append(groups, r.g.Name)
		}
	}
	return groups
}

// Ready sets the reason why this host can't serve a group's VIPs. "" means that it can.
func (n *Node) Ready(now local.Time, group, why string) []local.Action {
	n.begin(now)
	if r := n.find(group); r != nil {
		r.ready(why)
	}
	return n.step()
}

// Resign hands over a group to another router, if this host owns the group. If no other router
// takes over, this host becomes the owner again.
func (n *Node) Resign(now local.Time, group string) []local.Action {
	n.begin(now)
	if r := n.find(group); r != nil && r.state == Active {
		r.fitness.moving = true
		r.resign(Backup, cause{"moved", "requested by an operator"})
	}
	return n.step()
}

// Standby puts this host on standby, or ends its standby. In both cases, it also ends the effects
// of earlier moves and yields.
func (n *Node) Standby(now local.Time, on bool) []local.Action {
	n.begin(now)
	n.standby = on
	for _, r := range n.routers {
		r.fitness.held, r.peers.yielded = false, yielded{}
		if on {
			r.resign(Init, cause{"standby", "this host is on standby"})
		}
	}
	return n.step()
}

// Stop starts to release all VIPs, and then to close the gate. Left reports whether this is
// complete.
func (n *Node) Stop(now local.Time) []local.Action {
	n.begin(now)
	n.stopping = true
	for _, r := range n.routers {
		r.resign(Init, cause{"stopped", "vipd owner stops"})
	}
	return n.step()
}

// Left reports whether a stopped node has released all VIPs and closed its gate.
func (n *Node) Left() bool {
	giving := func(r *router) bool { return r.giving != 0 }
	return n.stopping && n.gate == closed && !slices.ContainsFunc(n.routers, giving) && !slices.ContainsFunc(n.leaving, giving)
}

// Whose returns "", because VRRP does not report other hosts' MACs.
func (n *Node) Whose(string) string { return "" }

// SetGroups replaces the groups. A group whose router ID, version, interface or source address
// changes is released and started again. GateTime(groups) must not change.
func (n *Node) SetGroups(now local.Time, groups []Group) []local.Action {
	n.begin(now)
	var after []*router
	for i := range groups {
		g := groups[i]
		r := n.find(g.Name)
		if r == nil || !r.g.sameRouter(&g) {
			r = newRouter(n.env, g)
		} else {
			r.set(g)
		}
		after = append(after, r)
	}
	for _, r := range n.routers {
		if !slices.Contains(after, r) {
			r.resign(Init, cause{"removed", "the group was removed or changed"})
			n.leaving = append(n.leaving, r)
		}
	}
	n.routers = after
	n.leaving = slices.DeleteFunc(n.leaving, func(r *router) bool { return r.giving == 0 })
	return n.step()
}

func (n *Node) find(group string) *router {
	for _, r := range n.routers {
		if r.g.Name == group {
			return r
		}
	}
	return nil
}

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }
