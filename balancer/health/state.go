package health

import (
	"time"

	"vipd/balancer"
)

// Rules say how results make a verdict, and when to look again.
type Rules struct {
	// Interval is from the beginning of one check to that of the next.
	Interval time.Duration
	// FastInterval is the same while a row of contrary results is under way.
	FastInterval time.Duration
	// Rise is how many results in a row must pass to bring a target up, Fall how many must fail to take it down. Both are
	// at least 1.
	Rise, Fall int
}

// RulesOf returns the rules of a service's checks.
func RulesOf(h *balancer.Health) Rules {
	return Rules{Interval: h.Interval, FastInterval: h.FastInterval, Rise: h.Rise, Fall: h.Fall}
}

// State is what is known of one target. It is a value: After returns the next one.
type State struct {
	// Verdict is what it comes to; unknown before the first result.
	Verdict balancer.Verdict
	// Since is when the verdict was reached; zero while it is unknown.
	Since time.Time
	// Cause is the text of the result that decided: later ones may say something else. "" while the verdict is Assumed.
	Cause string
	// Streak counts the latest results in a row that speak against the verdict.
	Streak int
	// Last is the latest result; its Outcome is "" before the first.
	Last Result
	// Due is when the next check is to begin.
	Due time.Time
	// Assumed: the verdict is what others have found, and no result of this state's own has borne it out yet.
	Assumed bool

	seed    uint64 // makes the jitter of this target
	checks  uint64 // results so far
	offbeat bool   // others of its kind may be checked at the same moment: those that Sooner was for, too, or that turned with it
}

// New returns the state of a target of which nothing is known. Its first check is due within the given time from now:
// when in it, seed decides, so that many targets that begin together are spread over it.
func New(seed uint64, now time.Time, within time.Duration) State {
	s := State{seed: seed}
	s.Due = now.Add(time.Duration(s.fraction() * float64(within)))
	return s
}

// Assume returns the state that goes on from what others have found: it takes as many results to change that as if they
// had been its own.
func (s State) Assume(v balancer.Verdict, now time.Time) State {
	s.Verdict, s.Since, s.Cause, s.Streak, s.Assumed = v, now, "", 0, true
	return s
}

// After returns the state after one more result.
func (s State) After(r Rules, res Result) State {
	turned := s.Turning()
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
	s.offbeat = s.offbeat || turned && !s.Turning()
	s.Due, s.offbeat = s.next(r, res), false
	return s
}

// decide makes v the verdict, as of the latest result.
func (s State) decide(v balancer.Verdict) State {
	s.Verdict, s.Since, s.Cause, s.Streak, s.Assumed = v, s.Last.Ended(), s.Last.Text, 0, false
	return s
}

// Turning reports whether the latest result spoke against the verdict, without having changed it yet.
func (s State) Turning() bool { return s.Streak > 0 }

// next is when to check again after res. Checks come up to a tenth of the interval early, by chance, so that targets
// drift apart; never late, so that a failure is noticed in the time that the rules promise. After one that many may have
// had at the same moment, the next comes at any time within the interval. A check that took longer than the interval is
// followed at once: they never overlap.
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

// needed is how many results against the verdict v change it.
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

// fraction is from 0 up to 1, and looks random from one check to the next: splitmix64 of the seed and the count.
func (s State) fraction() float64 {
	x := s.seed + (s.checks+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}
