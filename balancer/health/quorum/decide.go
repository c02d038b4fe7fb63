package quorum

import (
	"slices"
	"time"

	"vipd/balancer"
)

// Decide returns what is known of a target that so many nodes check, and since when, from their votes. Before is what
// was known until now; others are the votes of nodes that were its checkers a moment ago.
func Decide(before balancer.Verdict, since time.Time, checkers int, votes, others []Vote) (balancer.Verdict, time.Time) {
	counting := checkers - len(of(votes, balancer.HealthUnknown))
	need := counting/2 + 1
	for _, v := range []balancer.Verdict{balancer.HealthUp, balancer.HealthDown} {
		agreed := of(votes, v)
		if len(agreed) < need {
			continue
		}
		if v == before {
			return before, since
		}
		return v, agreed[need-1].Since // when the majority was complete
	}
	if before != balancer.HealthUnknown {
		return before, since
	}
	return guess(need, len(votes) == checkers, slices.Concat(votes, others))
}

// guess is what whoever does not know what was decided makes of votes that don't decide: what most say. Where that is
// nothing and all have voted, it is the vote that stands longest.
func guess(need int, all bool, votes []Vote) (balancer.Verdict, time.Time) {
	up, down := of(votes, balancer.HealthUp), of(votes, balancer.HealthDown)
	switch {
	case len(up)+len(down) < need:
	case len(up) > len(down), len(up) == len(down) && all && up[0].Since.Before(down[0].Since):
		return balancer.HealthUp, up[0].Since
	case len(up) < len(down) || all:
		return balancer.HealthDown, down[0].Since
	}
	return balancer.HealthUnknown, time.Time{}
}

// of returns the votes for a verdict, the oldest first.
func of(votes []Vote, v balancer.Verdict) []Vote {
	var out []Vote
	for _, each := range votes {
		if each.Verdict == v {
			out = append(out, each)
		}
	}
	slices.SortFunc(out, func(a, b Vote) int { return a.Since.Compare(b.Since) })
	return out
}
