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

// dissent keeps which targets of the fleet this node finds otherwise than the majority, for longer than it takes the others
// to find the same. It is told once for all of them: a node that is cut off from its endpoints disagrees about them all.
type dissent struct {
	since map[balancer.Target]time.Time
	told  time.Time // since when it is; zero means it is not
}

// look takes in what this node has found and what the fleet has, of the targets that it votes about, and returns what there
// is to be recorded.
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
		if h := wanted.At(t).Health; h != nil && now.Sub(began) > settle+time.Duration(max(h.Fall, h.Rise))*h.Interval+h.Timeout {
			lasting = append(lasting, t)
		}
	}
	d.since = since
	switch {
	case len(lasting) > 0 && d.told.IsZero():
		t := lasting[0]
		d.told = since[t]
		return events.Event{
			At: now, Kind: events.Health, Level: slog.LevelWarn, Cause: votes.At(t).Cause,
			Text: fmt.Sprintf("this node's own checks are outvoted: it finds %s %s %s, and most of the others %s", t.Service, t.Address(), votes.At(t).Verdict, fleet.At(t)),
		}, true
	case len(since) == 0 && !d.told.IsZero():
		e := events.Event{At: now, Kind: events.Health, Text: "this node's checks agree with the majority again", Was: "outvoted", Lasted: now.Sub(d.told)}
		d.told = time.Time{}
		return e, true
	}
	return events.Event{}, false
}

// dissentLocked records that this node is outvoted, and the end of that. A node that decides alone is never outvoted.
func (f *Checks) dissentLocked(now time.Time) {
	votes := f.votes
	if f.aloneLocked() {
		votes = snap.Map[balancer.Target, *quorum.Vote]{}
	}
	if e, is := f.dissent.look(votes, f.coordinator.Shared(), f.wanted, f.o.Settle, now); is {
		f.o.Record(e)
	}
}

// Otherwise says what this node has found of a target, where that is not what the fleet goes by: "up by 2 of 3 nodes; this
// node: no answer within 1s".
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
	what := "this node"
	if own.Verdict == balancer.HealthUnknown {
		what = "this node can't check"
	}
	return fmt.Sprintf("%s by %d of %d nodes; %s: %s", s.Verdict, agree, len(s.Checkers), what, own.Cause)
}

// MayRun reports whether some node may run the programs that checks ask for, as far as was known last, or nothing is known
// of any. Nil: there is no fleet.
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
