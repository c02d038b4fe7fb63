package fleetchecks

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
)

// dissent finds targets on which this node has disagreed with the majority for so long that the
// other nodes had time to reach the same verdict. It reports all of them in one event, because a
// node that is cut off from its endpoints disagrees on all of them.
type dissent struct {
	since    map[balancer.Target]time.Time
	recorded time.Time // when the event was recorded, or zero
}

// look compares this node's votes with the fleet's verdicts. If this node starts or stops being
// outvoted, it returns an event and true.
func (d *dissent) look(votes snap.Map[balancer.Target, *quorum.Vote], fleet snap.Map[balancer.Target, balancer.Verdict],
	wanted snap.Map[balancer.Target, health.Subject], settle time.Duration, now time.Time,
) (events.Event, bool) {
	since := map[balancer.Target]time.Time{}
	var lasting []balancer.Target
	for t, vote := range votes.All() {
		verdict := fleet.At(t)
		if vote.Verdict == verdict || vote.Verdict == balancer.HealthUnknown || verdict == balancer.HealthUnknown {
			continue
		}
		began, known := d.since[t]
		if !known {
			began = now
		}
		since[t] = began
		if subject, known := wanted.Get(t); known && now.Sub(began) > settle+subject.Confirmation() {
			lasting = append(lasting, t)
		}
	}
	d.since = since
	switch {
	case len(lasting) > 0 && d.recorded.IsZero():
		t := lasting[0]
		d.recorded = since[t]
		return events.Event{
			At: now, Kind: events.Health, Level: slog.LevelWarn, Cause: votes.At(t).Cause,
			Text: fmt.Sprintf("this node's own checks are outvoted: it finds %s %s %s, but most other nodes find it %s", t.Service, t.Address(), votes.At(t).Verdict, fleet.At(t)),
		}, true
	case len(since) == 0 && !d.recorded.IsZero():
		e := events.Event{At: now, Kind: events.Health, Text: "this node's checks agree with the majority again", Was: "outvoted", Lasted: now.Sub(d.recorded)}
		d.recorded = time.Time{}
		return e, true
	}
	return events.Event{}, false
}

// dissentLocked adds an event to the history when this node is outvoted, and another when it no
// longer is. A node that decides alone is never outvoted.
func (f *Checks) dissentLocked(now time.Time) {
	votes := f.votes
	if f.aloneLocked() {
		votes = snap.Map[balancer.Target, *quorum.Vote]{}
	}
	if e, changed := f.dissent.look(votes, f.coordinator.Shared(), f.wanted, f.o.Settle, now); changed {
		f.o.Record(e)
	}
}

// Otherwise describes this node's verdict on a target if it differs from the fleet's, such as "up
// by 2 of 3 nodes; this node: no answer within 1s". Otherwise it returns "".
func Otherwise(self balancer.NodeName, s *quorum.Tally) string {
	own, voted := s.Votes[self]
	if s.Alone || !voted || own.Verdict == s.Verdict || s.Verdict == balancer.HealthUnknown || !slices.Contains(s.Checkers, self) {
		return ""
	}
	agree := 0
	for _, n := range s.Checkers {
		if vote, voted := s.Votes[n]; voted && vote.Verdict == s.Verdict {
			agree++
		}
	}
	subject := "this node"
	if own.Verdict == balancer.HealthUnknown {
		subject = "this node can't check"
	}
	return fmt.Sprintf("%s according to %d of %d nodes; %s: %s", s.Verdict, agree, len(s.Checkers), subject, own.Cause)
}

// MayRun reports whether any node may run the programs of exec checks, as far as this node knows.
// It returns true if no node is known. It returns false if f is nil, because this node then does
// not belong to a fleet.
func (f *Checks) MayRun() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, checker := range f.board.Nodes.All() {
		if checker.Exec {
			return true
		}
	}
	return f.board.Nodes.Len() == 0
}
