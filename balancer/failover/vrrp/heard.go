package vrrp

import (
	"fmt"

	"vipd/balancer/failover/local"
)

// received processes a packet with the group's router ID.
func (r *router) received(d *Datagram) {
	p := r.peers.find(d.From)
	a, sum, err := r.g.accept(d)
	if a != nil {
		p.every = a.Interval
	}
	if err != nil {
		if r.peers.dropped(r.env, &r.g, p, err); p.drop.counts() {
			r.ignored(p)
		}
		return
	}
	r.peers.accepted(r.now, p, a, sum)
	switch r.state {
	case Backup:
		r.heardAsBackup(p)
	case Claiming, Active:
		r.heardAsOwner(p)
	}
}

// ignored processes a dropped advert from a router that may be an owner.
func (r *router) ignored(p *peer) {
	switch r.state {
	case Backup:
		if r.peers.yielded.text != "" {
			r.restart(p.interval(r.g.Interval))
		}
	case Claiming, Active:
		r.heardRival(p)
	}
}

// heardAsBackup processes an advert while this host is a Backup. It restarts the down timer, unless
// this host takes over from the sender.
func (r *router) heardAsBackup(p *peer) {
	a := p.advert
	r.peers.reconcile(p, &r.g)
	if a.Priority == resignPriority {
		r.shortenDownTimer()
		return
	}
	if r.fitness.moving {
		r.fitness.moving, r.fitness.held = false, true
	}
	own := r.priority()
	switch {
	case a.Priority >= own || r.peers.yielded.text != "":
		r.restart(a.Interval)
	case a.Priority == unfitPriority:
		r.shortenDownTimer() // its sender can't serve the VIPs
	case !r.fitness.preempts(r.now, r.g.Preempt) || !r.witnessed():
		r.restart(a.Interval)
	}
}

// heardAsOwner processes an advert while this host is Claiming or Active. It leaves the VIPs to a
// router with a higher priority. It answers a router with a lower priority with its own advert, so
// that router yields. If this host may be cut off, it resigns instead.
func (r *router) heardAsOwner(p *peer) {
	a, own := p.advert, r.priority()
	switch {
	case a.Priority == resignPriority:
		r.reply()
	case a.Priority > own || a.Priority == own && p.addr.Compare(r.g.Link.Source) > 0:
		text := fmt.Sprintf("gave %s to %s (priority %d; this host has %d)", r.g.label(), p.addr, a.Priority, own)
		r.stepDown(local.NoteGave, text, cause{"priority", fmt.Sprintf("%s has priority %d; this host has %d", p.addr, a.Priority, own)}, a.Interval)
	case r.witness.here && !r.witnessed():
		// Perhaps only this host was cut off.
		r.resign(Backup, cause{"witness", fmt.Sprintf("%s is also Active, and no host of ownership.reach answers", p.addr)})
	default:
		r.reply()
		r.heardRival(p)
	}
}
