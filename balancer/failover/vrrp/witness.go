package vrrp

import (
	"time"

	"vipd/balancer/failover/local"
)

// witness is the knowledge of the hosts that must be within reach.
type witness struct {
	answered local.Time
	// here reports whether a witness has answered while this host was Active, and lost whether all
	// have been silent since.
	here, lost bool
	// asks counts the questions since the down timer ended, and blocked reports whether all were
	// unanswered.
	asks    int
	blocked bool
}

// The times of the witness.
const (
	witnessLost   = 2 * time.Second
	witnessRecent = time.Second
	askEvery      = 50 * time.Millisecond
	maxAsks       = 3
)

// reached processes an answer.
func (r *router) reached() {
	w := &r.witness
	w.answered, w.lost = r.now, false
	w.here = w.here || r.state == Active
	if w.asks > 0 && r.state == Backup {
		w.asks, w.blocked = 0, false
		r.due = r.now // the down timer has ended
	}
}

// fellSilent reports whether no witness has answered for a while, although one did while this host
// was Active.
func (w *witness) fellSilent(now local.Time) bool {
	if !w.here || now.Since(w.answered) < witnessLost {
		return false
	}
	w.here, w.lost = false, true
	return true
}

// hasWitness reports whether this host may take over. If the owner is silent, this host might be
// cut off.
func (r *router) hasWitness() bool {
	w := &r.witness
	if r.g.Witness != WitnessRequired || r.peers.resigned(r.now, &r.g) || r.peers.owned(r.now, &r.g) || w.answered > 0 && r.now.Since(w.answered) <= witnessRecent {
		w.asks, w.blocked = 0, false
		return true
	}
	if w.asks < maxAsks {
		w.asks++
		r.due = r.now.Add(askEvery)
		r.do(Ask{On: r.g.Link.On})
		return false
	}
	if !w.blocked {
		w.blocked = true
		r.do(local.Note{Kind: local.NoteRefused, VIPs: len(r.g.VIPs), Text: "did not take " + r.g.label() + ": no host that must be within reach answers", Why: "witness"})
	}
	r.due = r.now.Add(witnessRecent)
	w.asks = 1 // so an answer ends the wait
	r.do(Ask{On: r.g.Link.On})
	return false
}
