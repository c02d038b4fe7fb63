package health

import "vipd/balancer"

// Combined is the state of a target with several checks.
type Combined struct {
	// State is the verdict of all checks together. Its cause and time belong to the check that
	// decides, and its results to Shown. Due is the time of the next check.
	State
	// Decides is the index of the check that decides. Shown is the index of the check whose results
	// contradict the verdict; if no check does, it equals Decides.
	Decides, Shown int
}

// Combine returns the state of a target from the states of its checks. It is up if all checks have
// found it up, or with need = "any", if a single check has. One check that finds it down, or up
// with any, decides alone.
func Combine(states []State, need balancer.HealthNeed) Combined {
	alone, together := balancer.HealthDown, balancer.HealthUp
	if need == balancer.NeedAnyHealth {
		alone, together = together, alone
	}
	verdict := together
	for i := range states {
		switch states[i].Verdict {
		case alone:
			verdict = alone
		case balancer.HealthUnknown:
			if verdict == together {
				verdict = balancer.HealthUnknown
			}
		}
	}
	decides, shown := -1, -1
	due := states[0].Due
	for i := range states {
		s := &states[i]
		if s.Due.Before(due) {
			due = s.Due
		}
		if s.Verdict != verdict {
			continue
		}
		if decides < 0 || s.precedes(&states[decides], verdict == alone) {
			decides = i
		}
		if s.Turning() && shown < 0 {
			shown = i
		}
	}
	if shown < 0 {
		shown = decides
	}
	out := Combined{State: states[decides], Decides: decides, Shown: shown}
	out.Due = due
	out.Streak = states[shown].Streak
	out.Last = states[shown].Last
	return out
}

// precedes reports whether s decides a verdict before other, which has the same verdict. A check
// that decides alone is the earliest that is not assumed; of checks that decide together, it is the
// last.
func (s *State) precedes(other *State, alone bool) bool {
	if s.Assumed != other.Assumed {
		return s.Assumed != alone
	}
	if alone {
		return s.Since.Before(other.Since)
	}
	return s.Since.After(other.Since)
}
