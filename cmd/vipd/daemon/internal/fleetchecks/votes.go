package fleetchecks

import (
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/dataplane/probe"
)

// Vote publishes this node's new verdicts on targets to the fleet. It returns the targets that do
// not belong to the fleet. If f is nil, it returns all targets.
func (f *Checks) Vote(targets []balancer.Target) (others []balancer.Target) {
	if f == nil {
		return targets
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range targets {
		switch {
		case !f.coordinator.Has(t):
			others = append(others, t)
		case f.assignments.Has(t):
			f.pending[t] = true
		}
	}
	f.voteLocked()
	return others
}

// voteLocked writes votes that have changed, and votes on targets that this node has just started
// to check for the fleet.
func (f *Checks) voteLocked() {
	assignments := f.coordinator.Assignments()
	for t, c := range snap.Diff(f.assignments, assignments) {
		if c.HasNew {
			f.pending[t] = true
		} else {
			delete(f.pending, t)
			delete(f.cannotRun, t)
			f.votes = f.votes.Delete(t)
		}
	}
	f.assignments = assignments
	for t := range f.pending {
		status, ok := f.o.Runner.Status(t)
		if !ok {
			continue
		}
		since, cannotRun := f.cannotRun[t]
		vote, final := voteOf(status.State, unable(&status), cannotRun && time.Since(since) >= f.o.Settle)
		if before := f.votes.At(t); vote != nil && (before == nil || before.Verdict != vote.Verdict) {
			f.votes = f.votes.Set(t, vote)
		}
		if final {
			delete(f.pending, t)
		}
	}
	if f.voter != nil {
		f.voter.Set(quorum.Checker{Exec: f.exec}, f.votes)
	}
}

// retractVotesLocked finds checks that can no longer run, and checks that can run again. If a check
// could not run for Settle, it withdraws the vote, because an old vote would block a second checker
// forever.
func (f *Checks) retractVotesLocked(now time.Time) {
	for t := range f.assignments.Keys() {
		status, _ := f.o.Runner.Status(t)
		since, before := f.cannotRun[t]
		switch cannotRun := unable(&status).Outcome == health.NotRun; {
		case cannotRun && !before:
			f.cannotRun[t] = now
		case cannotRun && now.Sub(since) >= f.o.Settle:
			f.pending[t] = true
		case !cannotRun && before:
			delete(f.cannotRun, t)
			f.pending[t] = true
		}
	}
}

// unable returns the result of a check that could not run, if the verdict depends on that check.
// Otherwise, for example if another check decides alone, it returns the zero Result.
func unable(s *probe.Status) (result health.Result) {
	if len(s.Checks) == 0 {
		if s.State.Last.Outcome == health.NotRun {
			return s.State.Last
		}
		return health.Result{}
	}
	alone := balancer.HealthDown
	if s.Health.Need == balancer.NeedAnyHealth {
		alone = balancer.HealthUp
	}
	for i := range s.Checks {
		switch c := &s.Checks[i].State; {
		case c.Last.Outcome == health.NotRun:
			result = c.Last
		case c.Verdict == alone && !c.Assumed:
			return health.Result{}
		}
	}
	return result
}

// voteOf returns this node's vote on a target, given the state of its own check, or nil if there is
// no vote yet. notRun is the result of a check that can't run, and lasts reports whether it could
// not run for Settle. A final vote is valid until the verdict changes.
func voteOf(s health.State, notRun health.Result, lasts bool) (vote *quorum.Vote, final bool) {
	switch {
	case s.Verdict != balancer.HealthUnknown && !s.Assumed && !lasts:
		return &quorum.Vote{Verdict: s.Verdict, Since: s.Since, Cause: s.Cause}, true
	case notRun.Outcome == health.NotRun:
		return &quorum.Vote{Since: notRun.Began, Cause: notRun.Text}, false
	}
	return nil, false
}

// report records whether the fleet receives this node's votes.
func (f *Checks) report(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, now := f.unpublished, time.Now()
	f.unpublished = err
	switch {
	case err != nil && was == nil:
		f.silent = now
		f.o.Record(events.Event{
			At: now, Kind: events.Health, Level: slog.LevelWarn, Text: "the fleet does not receive this node's health check results", Cause: err.Error(),
		})
	case err == nil && was != nil:
		f.o.Record(events.Event{At: now, Kind: events.Health, Text: "the fleet receives this node's health check results again", Was: "unheard", Lasted: now.Sub(f.silent)})
	}
}

// Problems returns the reasons why checks are not shared with the fleet. The store itself reports
// that etcd is unavailable.
func (f *Checks) Problems(connected bool) (all []balancer.Problem) {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	add := func(key, text string, err error) {
		if err != nil && connected {
			all = append(all, balancer.Problem{
				Severity: balancer.SeverityWarning, Origin: balancer.Origin{Key: f.o.Config.Prefix + "/health/" + key}, Field: "health.from", Text: text + err.Error(),
			})
		}
	}
	add("", "this node does not receive the fleet's health check results, and checks endpoints itself: ", f.unread)
	add(f.o.Node+"/", "the fleet does not receive this node's health check results: ", f.unpublished)
	return all
}

// Standing returns the tally of a target, and reports whether the fleet checks it.
func (f *Checks) Standing(t balancer.Target) (quorum.Tally, bool) {
	if f == nil {
		return quorum.Tally{}, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.coordinator.Tally(t)
}

// recordLocked records changed verdicts of the fleet's targets in the history.
func (f *Checks) recordLocked(before snap.Map[balancer.Target, balancer.Verdict]) {
	for t, c := range snap.Diff(before, f.coordinator.Verdicts()) {
		s, ours := f.coordinator.Tally(t)
		if !ours || !c.HadOld && time.Since(s.Since) > f.o.Settle {
			continue // the target was removed, or its verdict is older than this node's knowledge of it
		}
		e := events.Event{
			At: s.Since, Kind: events.Health, Service: t.Service, Endpoint: t.Address(), Text: "is " + string(c.New), Cause: f.cause(t, s),
			Was: string(c.Old), Lasted: s.Lasted,
		}
		switch {
		case !c.HasNew:
			e.Text, e.Cause = "is no longer checked", "no node is allowed to run its program"
		case c.New == balancer.HealthDown:
			e.Level = slog.LevelWarn
		case c.HadOld:
			e.Text = "is up again"
		}
		f.o.Record(e)
	}
}

// cause describes the votes that led to a verdict.
func (f *Checks) cause(t balancer.Target, s quorum.Tally) string {
	if s.Alone {
		own, _ := f.o.Runner.Status(t)
		return own.State.Cause
	}
	return s.Text()
}
