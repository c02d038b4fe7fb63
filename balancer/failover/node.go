package failover

import (
	"net/netip"
	"time"

	"vipd/balancer/failover/local"
)

// Node is one host. One goroutine calls its methods, which return the actions to perform.
type Node struct {
	*parts
	holding  *holding
	takeover *takeover
}

// New returns a node in its initial state. The host's gate must be closed, and no VIP may be bound.
func New(o Options) *Node {
	n := &Node{}
	n.parts = newParts(o, n.learn)
	n.holding = &holding{parts: n.parts, unbinds: map[int]func(){}}
	n.takeover = &takeover{parts: n.parts}
	return n
}

// Deadline returns the time until which the session is confirmed, or 0 if it is not confirmed or
// the gate is closed. The caller refreshes the gate as long as Timing.Passes allows it.
func (n *Node) Deadline() local.Time {
	if !n.session.live || n.gate.state != opening && n.gate.state != open {
		return 0
	}
	return n.session.deadline
}

// Tick performs the steps that are due. It must be called several times per heartbeat interval.
func (n *Node) Tick(now local.Time) []local.Action {
	n.now = now
	return n.step()
}

func (n *Node) step() []local.Action {
	session := ID(0)
	if n.session.live {
		session = n.session.id
	}
	n.peers.beat(n.gate.ready(), session)
	if !n.etcd.loaded {
		return n.flush()
	}
	if n.gate.state == closed && !n.gate.stopping {
		n.session.begin()
	}
	n.gate.openIfConfirmed()
	n.session.renew()
	n.session.changeJury()
	if n.stale {
		n.stale = false
		n.takeover.count()
		n.holding.adopt()
	}
	n.holding.reclaimDue()
	if n.writer.behind() {
		return n.flush()
	}
	n.holding.giveAway()
	n.holding.depart()
	n.takeover.revoke()
	n.takeover.claimFree()
	return n.flush()
}

// Stored processes changes to etcd's records, in the order of their revisions. The parameter all is
// true if changes contains every record as of revision. In that case, the records must have been
// read after this run wrote its record nodes/NODE.
func (n *Node) Stored(now local.Time, changes []RecordChange, revision int64, all bool) []local.Action {
	n.now = now
	if all {
		n.etcd.loaded, n.etcd.etcdLost = true, false
		changes = append(changes, n.etcd.missing(changes, revision)...)
	}
	n.etcd.revision = max(n.etcd.revision, revision)
	for _, c := range changes {
		n.learn(c)
	}
	return n.step()
}

// learn processes a change to a record.
func (n *Node) learn(c RecordChange) {
	if !n.etcd.isNews(c) {
		return
	}
	n.stale, n.review = true, true
	own := c.Name == n.o.Name
	switch c.Kind {
	case Nodes:
		n.etcd.members.set(n.now, c)
		n.etcd.locate(c.Name)
		n.jurors.forget(c.Name)
		if own {
			n.jurors.registered()
		}
	case Sessions:
		if old := n.etcd.sessions[c.Name]; old != nil {
			delete(n.jurors.votes, old.value.ID) // the session has ended or was renewed
		}
		n.etcd.sessions.set(n.now, c)
		n.etcd.locate(c.Name)
		if own && n.session.learn(c) {
			n.holding.lose("session " + n.session.id.String() + " was revoked by other nodes")
		}
	case VIPs:
		before := n.etcd.owners[c.Name]
		n.etcd.owners.set(n.now, c)
		if after := n.etcd.owners[c.Name]; after != before {
			n.holding.ownerChanged(c.Name, before == nil || after == nil || before.value.Session != after.value.Session)
		}
	case Moves:
		n.etcd.moves.set(n.now, c)
	case Fences:
		n.etcd.fences.set(n.now, c)
		if own && c.Text != nil && n.session.live { // an operator has declared that this node is off
			n.holding.lose("this node is fenced: " + n.etcd.fences[c.Name].value.Reason)
		}
	}
}

// LostEtcd processes the loss of the connection to etcd. The connection counts as lost until Stored
// receives all records again.
func (n *Node) LostEtcd(now local.Time) []local.Action {
	n.now, n.etcd.etcdLost = now, true
	return nil
}

// Wrote processes the outcome of a Write. The parameter revision is valid only if the outcome is
// Done.
func (n *Node) Wrote(now local.Time, id int, outcome Outcome, revision int64) []local.Action {
	n.now = now
	n.writer.answered(id, outcome, revision)
	return n.step()
}

// SetPolicies sets the policies of all VIPs with hold = "one".
func (n *Node) SetPolicies(now local.Time, policies map[netip.Addr]Policy) []local.Action {
	n.now, n.stale = now, true
	for _, v := range n.vips.set(policies) {
		n.holding.release(v) // immediately, because the gate no longer covers the VIP
	}
	n.holding.forgetGone()
	n.holding.adopt()
	return n.step()
}

// SetMember sets this node's record, which the caller has written or will write to etcd.
func (n *Node) SetMember(now local.Time, m Member) []local.Action {
	n.now = now
	m.Boot = n.o.Member.Boot // until etcd has the new boot
	n.o.Member, n.review = m, true
	return n.step()
}

// Stop starts to release all VIPs that another node can hold, and then to end the session. Left
// reports whether this is complete.
func (n *Node) Stop(now local.Time) []local.Action {
	n.now = now
	n.gate.stopping, n.review = true, true
	return n.step()
}

// Left reports whether a stopped node no longer has a session.
func (n *Node) Left() bool { return n.gate.left }

// Opened processes the result of an OpenGate. It checks the deadline again before it binds
// addresses, because opening the gate may have been slow.
func (n *Node) Opened(now local.Time, err error) []local.Action {
	n.now = now
	if n.gate.state == opening {
		n.gate.state = open
		if err != nil {
			n.do(local.Note{Kind: local.NoteGate, Text: "the gate can't be opened: " + err.Error()})
			n.holding.closeGate()
		}
		n.holding.adopt()
	}
	return n.step()
}

// Lapsed processes a lapse of the gate. The parameter lasts is the duration of the lapse, or 0 if
// unknown.
func (n *Node) Lapsed(now local.Time, why local.Lapse, lasts time.Duration) []local.Action {
	n.now = now
	if n.gate.state == open {
		n.holding.lapse(why, lasts)
	}
	return n.step()
}

// Closed processes the completion of a CloseGate.
func (n *Node) Closed(now local.Time) []local.Action {
	n.now = now
	if n.gate.state == closing {
		n.gate.state = closed
		n.gate.leave()
	}
	return n.step()
}

// Unbound processes the completion of an Unbind.
func (n *Node) Unbound(now local.Time, id int) []local.Action {
	n.now = now
	n.holding.unbound(id)
	return n.step()
}

// Probed processes the answers to a Probe. The map found contains the MAC of the host that answered
// for each address, if any.
func (n *Node) Probed(now local.Time, addrs []netip.Addr, found map[netip.Addr]string) []local.Action {
	n.now = now
	n.takeover.probed(addrs, found)
	return n.step()
}

// Received processes a message that arrived at this node's address Member.At[on]. Any host on the
// network may replay a recorded message. An old Answer or Vote is still valid, and an Ask is only a
// request, but a Beat must be new.
func (n *Node) Received(now local.Time, on int, m Message) []local.Action {
	n.now = now
	if m.From == n.o.Name || n.etcd.members[m.From] == nil && n.etcd.sessions[m.From] == nil || on < 0 {
		return nil
	}
	switch m.Kind {
	case Beat:
		if from := n.peers.receive(on, m); from != nil {
			n.jurors.answer(from, on, m)
		}
	case Answer:
		if n.session.answered(m) {
			n.gate.openIfConfirmed()
		}
	case Ask:
		n.jurors.vote(m)
	case Vote:
		if n.jurors.collect(m) {
			n.takeover.revoke()
		}
	}
	return n.flush()
}

// Reached processes an answer from a host that the address Member.At[on] must reach. From then on,
// the address counts as working only while such hosts answer. Peers' heartbeats on the address are
// no longer sufficient.
func (n *Node) Reached(now local.Time, on int) []local.Action {
	n.peers.reach(on, now)
	return nil
}

// Reaching processes a change to the set of hosts that the address Member.At[on] must reach. Until
// one of them has answered, a peer's heartbeat on the address is sufficient.
func (n *Node) Reaching(now local.Time, on int) []local.Action {
	n.now = now
	n.peers.reach(on, 0)
	return nil
}

// Addresses returns the addresses at which a node receives heartbeats.
func (n *Node) Addresses(name string) []Address { return n.etcd.at[name] }

// Whose returns the node that has a device with this MAC, or "".
func (n *Node) Whose(mac string) string { return n.etcd.whose(mac) }
