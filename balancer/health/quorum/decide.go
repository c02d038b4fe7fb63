package quorum

import (
	"slices"
	"time"

	"vipd/balancer"
)

// Decide returns the verdict on a target from the votes of its checkers. The parameter checkers is
// their number, before is the current verdict, and others are former checkers' votes. The result
// since is when the votes decided. It is zero if the current verdict stays because the votes do not
// decide.
func Decide(before balancer.Verdict, checkers int, votes, others []Vote) (verdict balancer.Verdict, since time.Time) {
	counting := checkers - len(votesFor(votes, balancer.HealthUnknown))
	need := counting/2 + 1
	up, down := votesFor(votes, balancer.HealthUp), votesFor(votes, balancer.HealthDown)
	switch {
	case len(up) >= need:
		return balancer.HealthUp, up[need-1].Since // when the majority was complete
	case len(down) >= need:
		return balancer.HealthDown, down[need-1].Since
	case len(up) > 0 && len(up)+len(down) == counting:
		return older(up, down)
	case before != balancer.HealthUnknown:
		return before, time.Time{}
	}
	return guess(need, slices.Concat(votes, others))
}

// older breaks a tie in favour of the older vote. It ignores the current verdict. If it considered
// that, hosts with different verdicts would disagree until the tie ends.
func older(up, down []Vote) (balancer.Verdict, time.Time) {
	if up[0].Since.Before(down[0].Since) {
		return balancer.HealthUp, up[0].Since
	}
	return balancer.HealthDown, down[0].Since
}

// guess returns the verdict with the most votes, or unknown if there is a tie or there are fewer
// than need votes. Decide calls it on hosts that have no verdict yet.
func guess(need int, votes []Vote) (balancer.Verdict, time.Time) {
	up, down := votesFor(votes, balancer.HealthUp), votesFor(votes, balancer.HealthDown)
	switch {
	case len(up)+len(down) < need:
	case len(up) > len(down):
		return balancer.HealthUp, up[0].Since
	case len(up) < len(down):
		return balancer.HealthDown, down[0].Since
	}
	return balancer.HealthUnknown, time.Time{}
}

// votesFor returns the votes for a verdict, the oldest first.
func votesFor(votes []Vote, v balancer.Verdict) []Vote {
	out := slices.DeleteFunc(slices.Clone(votes), func(each Vote) bool { return each.Verdict != v })
	slices.SortFunc(out, func(a, b Vote) int { return a.Since.Compare(b.Since) })
	return out
}
