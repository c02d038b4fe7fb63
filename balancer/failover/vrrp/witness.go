package vrrp

import (
	"time"

	"vipd/balancer/failover/local"
)

// witness is the state of the hosts that must be within reach. The process sends requests to them
// continuously.
type witness struct {
	// asked is the time of the first request to these hosts, and answered is the time of the last
	// answer. Either may be 0.
	asked, answered local.Time
	// here reports whether a witness has answered while this host was Active. lost reports whether
	// all witnesses then fell silent.
	here, lost bool
	// waits reports whether the down timer has ended and this host is waiting for an answer.
	// blocked reports whether this host does not take over because no answer has arrived.
	waits, blocked bool
}

// The time limits for the answers of witnesses.
const (
	witnessLost   = 2 * time.Second
	witnessRecent = time.Second
	witnessWait   = 150 * time.Millisecond
)

// reached processes an answer from a witness. If witnesses were silent before, this host may have
// been cut off, and another router may have become the owner. A Backup then restarts its down timer
// to wait for adverts, and the time for which this host has been healthy starts again.
func (r *router) reached() {
	w := &r.witness
	cut := w.lost || w.blocked
	w.answered, w.lost = r.now, false
	w.here = w.here || r.state == Active
	switch {
	case cut:
		r.fitness.since = r.now
		if r.state == Backup {
			r.restart(r.last)
		}
	case w.waits && r.state == Backup:
		r.due = r.now // the down timer has ended
	}
}

// witnessed reports whether a host that must be within reach has answered recently. It returns true
// if the group does not use witnesses.
func (r *router) witnessed() bool {
	w := &r.witness
	return r.g.Witness == NoWitness || w.answered > 0 && r.now.Since(w.answered) <= witnessRecent
}

// unwitnessed reports whether this host is a Backup that would not take over from a silent owner,
// because no witness has answered for a while.
func (r *router) unwitnessed(now local.Time) bool {
	w := &r.witness
	return r.state == Backup && r.g.Witness == WitnessRequired && !w.blocked && now.Since(max(w.asked, w.answered)) > witnessLost
}

// fellSilent reports whether the witnesses fell silent: none has answered for a while, although one
// answered earlier while this host was Active.
func (w *witness) fellSilent(now local.Time) bool {
	if !w.here || now.Since(w.answered) < witnessLost {
		return false
	}
	w.here, w.lost = false, true
	return true
}

// hasWitness reports whether this host may take over. If the owner is silent, a witness must have
// answered, because this host might be cut off.
func (r *router) hasWitness() bool {
	w := &r.witness
	if r.g.Witness != WitnessRequired || r.peers.resigned(r.now, &r.g) || len(r.peers.owners(r.now, &r.g)) > 0 || r.witnessed() {
		w.waits, w.blocked = false, false
		return true
	}
	if !w.waits {
		w.waits = true
		r.due = r.now.Add(witnessWait)
		return false
	}
	if !w.blocked {
		w.blocked = true
		r.do(local.Note{Kind: local.NoteRefused, VIPs: len(r.g.VIPs), Text: "did not take " + r.g.label() + ": no host of ownership.reach answers", Why: "witness"})
	}
	r.due = r.now.Add(witnessRecent)
	return false
}
