package health

import (
	"time"

	"vipd/balancer"
)

// Saved is a state as it is kept over a restart.
type Saved struct {
	Verdict balancer.Verdict `json:"verdict"`
	Since   time.Time        `json:"since"`
	Cause   string           `json:"cause,omitempty"`
	Streak  int              `json:"streak,omitempty"`
	Result
}

// Save returns what is to be kept of s, and whether there is anything: of a target without its own verdict there is
// not.
func (s State) Save() (Saved, bool) {
	last := s.Last
	last.Began = plain(last.Began)
	return Saved{s.Verdict, plain(s.Since), s.Cause, s.Streak, last}, s.Verdict != balancer.HealthUnknown && !s.Assumed
}

// minKept is how long a verdict is worth something at least: a host may take that long to start again.
const minKept = time.Minute

// Restore returns the state that goes on from what was kept and was still so at the time held, its next check due within the given
// time from now. What is older than a minute or three intervals, whichever is more, or from the future, counts for nothing: the
// target is unknown again, and its first result decides.
func (v Saved) Restore(r Rules, seed uint64, held, now time.Time, within time.Duration) State {
	s := New(seed, now, within)
	age := min(now.Sub(v.Ended()), now.Sub(held))
	if age < 0 || age > max(minKept, 3*r.Interval) || v.Verdict != balancer.HealthUp && v.Verdict != balancer.HealthDown {
		return s
	}
	s.Verdict, s.Since, s.Cause, s.Streak, s.Last = v.Verdict, v.Since, v.Cause, v.Streak, v.Result
	return s
}

// Inherit returns the state of a target whose check is replaced by another one at the time now: what is known of it
// stays until the new check has seen enough to say otherwise. That begins within the given time.
func (s State) Inherit(seed uint64, now time.Time, within time.Duration) State {
	next := New(seed, now, within)
	next.Verdict, next.Since, next.Cause, next.Streak, next.Last, next.Assumed = s.Verdict, s.Since, s.Cause, s.Streak, s.Last, s.Assumed
	return next
}

// Sooner returns s with its next check due now, or as soon after the latest as the fast interval allows: hints can come
// by the thousand.
func (s State) Sooner(r Rules, now time.Time) State {
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
