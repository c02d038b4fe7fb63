package health

import (
	"time"

	"vipd/balancer"
)

// Saved is the part of a state that outlives a restart.
type Saved struct {
	Verdict balancer.Verdict `json:"verdict"`
	Since   time.Time        `json:"since"`
	Cause   string           `json:"cause,omitempty"`
	Streak  int              `json:"streak,omitempty"`
	Result
}

// Save returns the saved form of s. It returns false if s has no verdict of its own.
func (s State) Save() (Saved, bool) {
	last := s.Last
	last.Began = wallTime(last.Began)
	return Saved{s.Verdict, wallTime(s.Since), s.Cause, s.Streak, last}, s.Verdict != balancer.HealthUnknown && !s.Assumed
}

// minKept is the minimum validity of a saved verdict, because a host may need this long to restart.
const minKept = time.Minute

// Restore returns a state that continues from v. The parameter held is until when v was the current
// state. The next check is due within the given time from now. A verdict is ignored if it is from
// the future, or older than both a minute and three intervals. The target is then unknown, and its
// first result decides.
func (v Saved) Restore(r Rules, seed uint64, held, now time.Time, within time.Duration) State {
	s := New(seed, now, within)
	age := min(now.Sub(v.Ended()), now.Sub(held))
	if age < 0 || age > max(minKept, 3*r.Interval) || v.Verdict != balancer.HealthUp && v.Verdict != balancer.HealthDown {
		return s
	}
	s.Verdict = v.Verdict
	s.Since = v.Since
	s.Cause = v.Cause
	s.Streak = v.Streak
	s.Last = v.Result
	return s
}

// Inherit returns the state of a target whose check is replaced now. The verdict remains until
// enough of the new check's results contradict it. The new check starts within the given time.
func (s State) Inherit(seed uint64, now time.Time, within time.Duration) State {
	next := New(seed, now, within)
	next.Verdict = s.Verdict
	next.Since = s.Since
	next.Cause = s.Cause
	next.Streak = s.Streak
	next.Last = s.Last
	next.Assumed = s.Assumed
	return next
}

// Expedite returns s with its next check due now, after a hint that the target's health may have
// changed. Thousands of hints may arrive, so the check is due no earlier than a fast interval after
// the start of the latest check.
func (s State) Expedite(r Rules, now time.Time) State {
	due := now
	if s.Last.Outcome != "" {
		if earliest := s.Last.Began.Add(r.FastInterval); earliest.After(due) {
			due = earliest
		}
	}
	if due.Before(s.Due) {
		s.Due, s.offbeat = due, true
	}
	return s
}
