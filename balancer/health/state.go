package health

import (
	"time"

	"vipd/balancer"
)

// Rules define how results lead to a verdict, and when the next check is due.
type Rules struct {
	// Interval is the time from the start of one check to the start of the next.
	Interval time.Duration
	// FastInterval replaces Interval while results contradict the verdict.
	FastInterval time.Duration
	// Rise is the number of consecutive passed checks that bring a target up, and Fall is the
	// number of consecutive failed checks that take it down. Both are at least 1.
	Rise, Fall int
}

// RulesOf returns the rules of a service's checks.
func RulesOf(h *balancer.Health) Rules {
	return Rules{Interval: h.Interval, FastInterval: h.FastInterval, Rise: h.Rise, Fall: h.Fall}
}

// State is the health of one target. It is a value: After returns the next state.
type State struct {
	// Verdict is up, down, or unknown before the first result.
	Verdict balancer.Verdict
	// Since is when the verdict was reached. It is zero while the verdict is unknown.
	Since time.Time
	// Cause is the text of the result that decided. It is "" while the verdict is Assumed.
	Cause string
	// Streak is the number of latest results in a row that contradict the verdict.
	Streak int
	// Last is the latest result. Its Outcome is "" before the first result.
	Last Result
	// Due is when the next check is due.
	Due time.Time
	// Assumed reports whether the verdict is from other nodes, and this node's own results have not
	// confirmed it yet.
	Assumed bool

	seed    uint64 // seed of the target's jitter
	checks  uint64 // number of results so far
	offbeat bool   // other targets may be checked at the same moment, because of Expedite or because they changed together
}

// New returns the state of an unknown target. Its first check is due within the given time from
// now. The seed determines the time, so the checks of many targets that start together are spread.
func New(seed uint64, now time.Time, within time.Duration) State {
	s := State{seed: seed}
	s.Due = now.Add(time.Duration(s.fraction() * float64(within)))
	return s
}

// Assume returns the state with the verdict of other nodes. A change needs as many results as if
// the verdict were this node's own.
func (s State) Assume(v balancer.Verdict, now time.Time) State {
	s.Verdict = v
	s.Since = now
	s.Cause = ""
	s.Streak = 0
	s.Assumed = true
	return s
}

// After returns the state that results from s and another check result.
func (s State) After(r Rules, res Result) State {
	turning := s.Turning()
	s.Last = res
	s.checks++
	switch {
	case res.Outcome == NotRun:
	case s.Verdict == balancer.HealthUnknown:
		s = s.decide(verdictOf(res))
	case verdictOf(res) == s.Verdict:
		if s.Assumed {
			s.Cause = res.Text
		}
		s.Streak, s.Assumed = 0, false
	default:
		s.Streak++
		if s.Streak >= r.needed(s.Verdict) {
			s = s.decide(verdictOf(res))
		}
	}
	s.offbeat = s.offbeat || turning && !s.Turning()
	s.Due, s.offbeat = s.next(r, res), false
	return s
}

// decide returns the state with verdict v, reached with the latest result.
func (s State) decide(v balancer.Verdict) State {
	s.Verdict = v
	s.Since = s.Last.Ended()
	s.Cause = s.Last.Text
	s.Streak = 0
	s.Assumed = false
	return s
}

// Turning reports whether the latest result contradicted the verdict without changing it yet.
func (s State) Turning() bool { return s.Streak > 0 }

// next returns when the check after res is due. A random time of up to a tenth of the interval is
// subtracted, so checks of different targets drift apart. No time is added, so a failure is
// detected within the time that the rules promise. After a check that many targets may have had at
// the same moment, the next check may be due at any time between the fast interval and the
// interval. Checks never overlap: after a check that took longer than the interval, the next check
// is due immediately.
func (s State) next(r Rules, res Result) time.Time {
	wait, early := r.Interval, r.Interval/10
	switch {
	case s.Turning():
		wait, early = r.FastInterval, r.FastInterval/10
	case s.offbeat:
		early = r.Interval - r.FastInterval
	}
	due := res.Began.Add(wait - time.Duration(s.fraction()*float64(early)))
	if end := res.Ended(); due.Before(end) {
		return end
	}
	return due
}

// needed returns the number of consecutive contrary results that change the verdict v.
func (r Rules) needed(v balancer.Verdict) int {
	if v == balancer.HealthUp {
		return r.Fall
	}
	return r.Rise
}

func verdictOf(res Result) balancer.Verdict {
	if res.Outcome == Passed {
		return balancer.HealthUp
	}
	return balancer.HealthDown
}

// fraction returns a pseudorandom number in [0, 1) that differs from check to check: splitmix64 of
// the seed and the count.
func (s State) fraction() float64 {
	x := s.seed + (s.checks+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}
