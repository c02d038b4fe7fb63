package quorum

import (
	"slices"
	"time"

	"vipd/balancer"
)

// Decide returns what is known of a target that so many nodes check, from their votes. Before is what was known until now;
// others are the votes of nodes that were its checkers a moment ago. Since is when the votes came to it; zero where they
// did not, and before stays.
func Decide(before balancer.Verdict, checkers int, votes, others []Vote) (verdict balancer.Verdict, since time.Time) {
	counting := checkers - len(of(votes, balancer.HealthUnknown))
	need := counting/2 + 1
	up, down := of(votes, balancer.HealthUp), of(votes, balancer.HealthDown)
	switch {
	case len(up) >= need:
		return balancer.HealthUp, up[need-1].Since // when the majority was complete
	case len(down) >= need:
		return balancer.HealthDown, down[need-1].Since
	case len(up) > 0 && len(up)+len(down) == counting:
		return longest(up, down)
	case before != balancer.HealthUnknown:
		return before, time.Time{}
	}
	return guess(need, slices.Concat(votes, others))
}

// longest breaks a tie: the vote that stands longest decides. What was known before would not do, because it may differ
// from host to host, and would forever.
func longest(up, down []Vote) (balancer.Verdict, time.Time) {
	if up[0].Since.Before(down[0].Since) {
		return balancer.HealthUp, up[0].Since
	}
	return balancer.HealthDown, down[0].Since
}

// guess is what a host that does not know what was decided makes of votes that don't decide: what most say.
func guess(need int, votes []Vote) (balancer.Verdict, time.Time) {
	up, down := of(votes, balancer.HealthUp), of(votes, balancer.HealthDown)
	switch {
	case len(up)+len(down) < need:
	case len(up) > len(down):
		return balancer.HealthUp, up[0].Since
	case len(up) < len(down):
		return balancer.HealthDown, down[0].Since
	}
	return balancer.HealthUnknown, time.Time{}
}

// of returns the votes for a verdict, the oldest first.
func of(votes []Vote, v balancer.Verdict) []Vote {
	out := slices.DeleteFunc(slices.Clone(votes), func(each Vote) bool { return each.Verdict != v })
	slices.SortFunc(out, func(a, b Vote) int { return a.Since.Compare(b.Since) })
	return out
}
