package quorum_test

import (
	"testing"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
)

// TestTallyText formats tallies. The text must name the nodes that have voted, the causes of their
// votes, and the nodes that should have voted but have not.
func TestTallyText(t *testing.T) {
	up, down, none := balancer.HealthUp, balancer.HealthDown, balancer.HealthUnknown
	say := func(v balancer.Verdict, cause string) quorum.Vote { return quorum.Vote{Verdict: v, Cause: cause} }
	for want, s := range map[string]quorum.Tally{
		"0 of 3 nodes": {Verdict: up, Checkers: nodes(3)},
		"3 of 3 nodes: connected (host1, host2, host3)": {
			Verdict: up, Checkers: nodes(3),
			Votes: map[balancer.NodeName]quorum.Vote{"host3": say(up, "connected"), "host1": say(up, "connected"), "host2": say(up, "connected"), "host9": say(down, "gone")},
		},
		"2 of 4 nodes: connection refused (host1), no answer (host3); host2 reports up: connected; host4 can't check: no such file": {
			Verdict: down, Checkers: nodes(4),
			Votes: map[balancer.NodeName]quorum.Vote{
				"host1": say(down, "connection refused"), "host2": say(up, "connected"), "host3": say(down, "no answer"), "host4": say(none, "no such file"),
			},
		},
		"1 of 3 nodes: connected (host1); host2 has not voted; host3 has not voted": {
			Verdict: up, Checkers: nodes(3), TimedOut: nodes(3)[1:], Votes: map[balancer.NodeName]quorum.Vote{"host1": say(up, "connected")},
		},
		"0 of 2 nodes; host1 reports down: no answer": {Checkers: nodes(2), Votes: map[balancer.NodeName]quorum.Vote{"host1": say(down, "no answer")}},
	} {
		if got := s.Text(); got != want {
			t.Errorf("Text() = %q, want %q", got, want)
		}
	}
}
