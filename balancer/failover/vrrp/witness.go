package vrrp

import (
	"time"

	"vipd/balancer/failover/local"
)

// witness is the state of a group's witnesses: hosts whose answers show that this host is
// connected. The process continuously sends requests to them.
type witness struct {
	// asked is when the first request was sent to the witnesses, and answered is when the last
	// answer arrived. Either may be 0.
	asked, answered local.Time
	// here is set if a witness has answered while this host was Active. lost is set if all
	// witnesses then fell silent.
	here, lost bool
	// waits is set while the down timer has expired and this host waits for an answer. blocked is
	// set if this host does not take over because no answer has arrived.
	waits, blocked bool
}

// These are the time limits for witnesses' answers.
const (
	witnessLost   = 2 * time.Second
	witnessRecent = time.Second
	witnessWait   = 150 * time.Millisecond
)

// reached processes an answer from a witness. If witnesses were silent before, this host may have
// been cut off, and another router may have become the owner. A Backup then restarts its down timer
// to wait for adverts, and this host counts as healthy only from now on.
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
		r.due = r.now // the down timer has expired
	}
}

// witnessed reports whether a witness has answered recently. It returns true if the group does not
// use witnesses.
func (r *router) witnessed() bool {
	w := &r.witness
	return r.g.Witness == NoWitness || w.answered > 0 && r.now.Since(w.answered) <= witnessRecent
}

// unwitnessed reports whether this host is a Backup that would not take over from a silent owner,
// because no witness has answered recently.
func (r *router) unwitnessed(now local.Time) bool {
	w := &r.witness
	return r.state == Backup && r.g.Witness == WitnessRequired && !w.blocked && now.Since(max(w.asked, w.answered)) > witnessLost
}

// fellSilent reports whether the witnesses fell silent: none has answered recently, although one
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
