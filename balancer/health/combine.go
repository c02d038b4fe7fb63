package health

import "vipd/balancer"

// Combined is the state of a target with several checks.
type Combined struct {
	// State is the verdict of all checks together. Cause and Since are from the check Decides, and
	// Streak and Last are from the check Shown. Due is when the next check is due.
	State
	// Decides is the index of the check that decides. Shown is the index of the check whose results
	// contradict the verdict; if no check does, it equals Decides.
	Decides, Shown int
}

// Combine returns the state of a target from the states of its checks. The target is up if all
// checks have found it up, or, with need = "any", if a single check has. A check decides alone if
// it has found the target down, or up with "any".
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

// precedes reports whether s, rather than other, is the check that decides. Both have the same
// verdict. If one check decides alone, the earliest verdict that is not assumed decides. If all
// checks decide together, the latest verdict decides.
func (s *State) precedes(other *State, alone bool) bool {
	if s.Assumed != other.Assumed {
		return s.Assumed != alone
	}
	if alone {
		return s.Since.Before(other.Since)
	}
	return s.Since.After(other.Since)
}
