package vrrp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// State is a group's state on this host.
type State string

// These are the states.
const (
	Init   State = "Init"
	Backup State = "Backup"
	// Claiming has sent its first advert, and waits until a lower owner has removed the VIPs.
	Claiming State = "Claiming"
	Active   State = "Active"
)

// router represents this host in one group.
type router struct {
	*env
	g     Group
	state State
	// due is when a Backup takes over, a Claiming router may bind the VIPs, or an Active router
	// sends its next advert.
	due local.Time
	// last is the advert interval of the last owner.
	last  time.Duration
	bound []netip.Addr
	// giving is the ID of the Unbind that precedes a resigning advert, or 0.
	giving  int
	tenure  tenure
	fitness fitness
	witness witness
	peers   peers
	history history
	sender  sender
}

// sender numbers a router's adverts, and records whether they were sent.
type sender struct {
	// number is the number of the last advert, sent counts the adverts that were sent, and late is
	// the longest delay in sending an advert.
	number, sent uint64
	late         time.Duration
	// unsent is the reason why sending the tenure's last advert failed, or "". unsentAt is when it
	// failed.
	unsent   string
	unsentAt local.Time
}

// problem returns the reason why adverts recently could not be sent, or "".
func (s *sender) problem(now local.Time, g *Group) string {
	if s.unsent == "" || now.Since(s.unsentAt) >= max(problemKept, 2*g.DownTime(unfitPriority, g.Interval)) {
		return ""
	}
	return fmt.Sprintf("%s can't be owned here: adverts can't be sent: %s", g.Name, s.unsent)
}

// tenure describes the period since this router left Backup. The router is first Claiming and then
// Active.
type tenure struct {
	// first is the number of the tenure's first advert. sent is when the newest advert was sent, or
	// 0.
	first uint64
	sent  local.Time
	// replied is when this router last replied to another router.
	replied local.Time
	// began is when the tenure started, and active is when the VIPs were bound.
	began, active local.Time
	rivals        rivals
}

// newRouter returns the router of a group in its initial state.
func newRouter(e *env, g Group) *router {
	r := &router{env: e, g: g, state: Init, last: g.Interval}
	r.peers.byAddr, r.peers.drops = map[netip.Addr]*peer{}, map[Reason]uint64{}
	return r
}

// set replaces the configuration. An Active router then unbinds addresses that are no longer VIPs,
// and binds new VIPs.
func (r *router) set(g Group) {
	before := r.bound
	if g.Witness != r.g.Witness {
		r.witness.asked = r.now
	}
	r.g = g
	if r.state != Active {
		return
	}
	gone := slices.DeleteFunc(slices.Clone(before), func(a netip.Addr) bool { return slices.Contains(g.VIPs, a) })
	added := slices.DeleteFunc(slices.Clone(g.VIPs), func(a netip.Addr) bool { return slices.Contains(before, a) })
	r.bound = slices.Clone(g.VIPs)
	if len(gone) > 0 {
		r.do(local.Unbind{Addrs: gone})
	}
	if len(added) > 0 {
		r.do(local.Bind{Addrs: added})
	}
}

// owns reports whether adverts of this tenure were sent, so the gate may be open.
func (r *router) owns() bool {
	return r.state == Active || r.state == Claiming && r.tenure.sent > 0
}

// deadline returns when the gate must be closed unless another advert is sent.
func (r *router) deadline() local.Time { return r.tenure.sent.Add(r.g.OwnerTime()) }

// passes reports whether the gate may be opened or refreshed now, and VIPs may be bound.
func (r *router) passes() bool { return r.owns() && local.Passes(r.now, r.deadline(), r.gateTime) }

func (r *router) step() {
	switch r.state {
	case Init:
		if !r.stopping && !r.standby {
			r.fitness.since, r.witness.asked = r.now, r.now
			r.backUp(cause{"started", "started"}, r.g.Interval)
		}
	case Backup:
		if r.now >= r.due && r.giving == 0 && r.hasWitness() {
			r.claim()
		}
	case Claiming:
		r.settle()
	case Active:
		r.hold()
	}
}

// become changes the state, and records the change in the history.
func (r *router) become(s State, why cause) {
	r.history.add(Change{At: r.now, From: r.state, To: s, Why: why.word, Text: why.text})
	r.state = s
}

// backUp makes the router a Backup with a full down timer. The parameter interval is the owner's
// advert interval.
func (r *router) backUp(why cause, interval time.Duration) {
	if r.state != Backup {
		r.become(Backup, why)
	}
	r.tenure = tenure{}
	r.restart(interval)
}

// restart restarts the down timer. The parameter interval is the owner's advert interval.
func (r *router) restart(interval time.Duration) {
	r.last = interval
	r.due = r.now.Add(r.g.DownTime(r.priority(), interval))
	r.witness.waits, r.witness.blocked = false, false
}

// shortenDownTimer shortens the down timer to the skew, because the owner has resigned or can't
// serve the VIPs.
func (r *router) shortenDownTimer() { r.due = min(r.due, r.now.Add(r.g.Skew(r.priority(), r.last))) }

// claim sends the first advert of an owner. The VIPs are bound later, because a lower owner removes
// them when it receives the advert.
func (r *router) claim() {
	why := r.peers.claimed(r.now, &r.g)
	r.fitness.moving = false
	r.peers.yielded = yielded{}
	r.tenure = tenure{first: r.sender.number + 1, began: r.now}
	for _, p := range r.peers.owners(r.now, &r.g) {
		if v := r.tenure.rivals.find(p); v != nil {
			v.preempted = true
		}
	}
	r.become(Claiming, why)
	r.due = r.now.Add(settle)
	r.advertise(r.priority())
}

// settle binds the VIPs when this is safe: a lower owner has had time to remove them, the gate is
// open, and the last advert is recent.
func (r *router) settle() {
	switch {
	case r.tenure.sent == 0: // the first advert has not been sent yet
	case !r.passes():
		r.backUp(cause{"gate", "opening the gate took too long"}, r.g.Interval)
	case r.gate == closed: // even before due, because no VIP is bound yet
		r.gate = opening
		r.do(local.OpenGate{})
	case r.gate == open && r.now >= r.due:
		r.bind()
	}
}

func (r *router) bind() {
	why := r.history.latest()
	note := local.Note{Kind: local.NoteTook, Text: "took " + r.g.label() + ": " + why.text, VIPs: len(r.g.VIPs), Why: why.word}
	if p := r.peers.owner; p != nil {
		note.After = r.now.Since(p.at)
	}
	r.become(Active, why)
	r.bound, r.tenure.active = slices.Clone(r.g.VIPs), r.now
	r.witness.here = false
	r.fitness.held = false
	r.due = r.tenure.sent.Add(r.g.Interval)
	r.do(local.Bind{Addrs: r.bound})
	r.do(note)
}

// hold sends an owner's adverts, and releases the VIPs when necessary.
func (r *router) hold() {
	if !r.passes() {
		r.lose(cause{"deadline", "no advert was sent in time"})
		return
	}
	if r.g.Witness != NoWitness && r.witness.fellSilent(r.now) {
		r.resign(Backup, cause{"witness", "no host of ownership.reach answers"})
		return
	}
	if r.now >= r.due {
		r.sender.late = max(r.sender.late, r.now.Since(r.due))
		r.advertise(r.priority())
	}
	r.contest()
}

func (r *router) advertise(priority uint8) {
	r.sender.number++
	if priority != resignPriority && r.state == Active {
		r.due = r.now.Add(r.g.Interval)
	}
	s := Send{Group: r.g.Name, On: r.g.Link.On, Source: r.g.Link.Source, number: r.sender.number}
	a := r.g.advert(priority)
	for _, to := range r.g.Link.receivers() {
		s.Packets = append(s.Packets, Packet{to, a.Append(nil, r.g.Link.Source, to, r.peers.checksum(to, &r.g))})
	}
	r.do(s)
}

// reply answers an advert with this router's own advert. It does so at most four times per
// interval, because any host on the network may send many adverts.
func (r *router) reply() {
	if r.state == Active && r.now.Since(r.tenure.replied) >= r.g.Interval/4 {
		r.tenure.replied = r.now
		r.advertise(r.priority())
	}
}

// sent processes the result of sending an advert.
func (r *router) sent(number uint64, at local.Time, err error) {
	if err == nil {
		r.sender.sent++
		r.sender.unsent = ""
	}
	switch {
	case number < r.tenure.first || r.state != Claiming && r.state != Active:
	case err != nil:
		if text := err.Error(); r.state == Claiming && r.sender.unsent != text {
			r.do(local.Note{Kind: local.NoteRefused, Text: "did not take " + r.g.label() + ": adverts can't be sent: " + text, VIPs: len(r.g.VIPs), Why: "send"})
		}
		r.sender.unsent, r.sender.unsentAt = err.Error(), r.now
		r.lose(cause{"send", "adverts can't be sent: " + err.Error()})
	default:
		r.tenure.sent = max(r.tenure.sent, at)
	}
}

// lose makes an owner a Backup, because its adverts can't be sent in time.
func (r *router) lose(why cause) {
	r.stepDown(local.NoteLost, "lost "+r.g.label()+": "+why.text, why, r.g.Interval)
}

// stepDown makes an owner a Backup without sending an advert, and reports the change. The parameter
// interval is the new owner's advert interval.
func (r *router) stepDown(kind local.NoteKind, text string, why cause, interval time.Duration) {
	if r.state == Active {
		r.do(local.Note{Kind: kind, Text: text, VIPs: len(r.bound), Why: why.word})
	}
	r.unbind(0)
	r.backUp(why, interval)
}

func (r *router) unbind(id int) {
	if len(r.bound) > 0 {
		r.do(local.Unbind{ID: id, Addrs: r.bound})
		r.bound = nil
	}
}

// resign releases the VIPs: they are unbound, and then an advert informs the other routers. The
// next state is Backup or Init.
func (r *router) resign(next State, why cause) {
	before := r.state
	if before == Active {
		r.do(local.Note{Kind: local.NoteGave, Text: "resigned " + r.g.label() + ": " + why.text, VIPs: len(r.bound), Why: why.word})
		if len(r.bound) > 0 {
			r.ids++
			r.giving = r.ids
		}
		r.unbind(r.giving)
	}
	if before != next {
		r.become(next, why)
	}
	r.tenure = tenure{}
	r.restart(r.g.Interval)
	if r.giving == 0 && (before == Claiming || before == Active) {
		r.resigned()
	}
}

// resigned sends the advert which announces that this router has released the VIPs.
func (r *router) resigned() {
	r.giving = 0
	r.restart(r.g.Interval)
	r.advertise(resignPriority)
}
