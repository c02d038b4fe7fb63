package quorum_test

import (
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
)

// sitting is a coordinator with a single target, and the inputs of its current round.
type sitting struct {
	*quorum.Coordinator
	round quorum.Round
}

func newSitting(checkers int) *sitting {
	s := &sitting{quorum.New("me"), quorum.Round{Now: time.Unix(1000, 0), VoteDelay: 5 * time.Second}}
	s.round.Wanted = s.round.Wanted.Set(target(0), subject(target(0), balancer.TCPHealth, true))
	for _, n := range nodes(checkers) {
		s.round.Board.Nodes = s.round.Board.Nodes.Set(n, quorum.Checker{})
	}
	return s
}

// after advances the time by d, sets the votes of the first nodes, and returns the tally. The
// function ballots describes the format of votes.
func (s *sitting) after(d time.Duration, votes string) quorum.Tally {
	s.round.Now = s.round.Now.Add(d)
	for i, v := range ballots(votes) {
		s.round.Board.Votes = s.round.Board.Votes.Set(quorum.VoteKey{Target: target(0), Node: nodes(9)[i]}, &v)
	}
	s.Assign(s.round)
	s.Judge(verdicts{})
	standing, _ := s.Tally(target(0))
	return standing
}

// TestVerdictSince reads a verdict's Since. For a host that starts, it must be when the votes
// agreed, but never in the future, even if a clock is ahead. For a host that sees the verdict
// change, it must be the current time, however old the votes are. While the board is unreachable,
// it must not change.
func TestVerdictSince(t *testing.T) {
	const second = time.Second
	check := func(what string, s quorum.Tally, want balancer.Verdict, since int64, lasted time.Duration) {
		t.Helper()
		if s.Verdict != want || s.Since != time.Unix(since, 0) || s.Lasted != lasted {
			t.Errorf("%s: verdict = %q since %d, the previous verdict lasted %s; want %q since %d, %s", what, s.Verdict, s.Since.Unix(), s.Lasted, want, since, lasted)
		}
	}
	s := newSitting(3)
	check("found so", s.after(0, "u5 u7 d3"), balancer.HealthUp, 7, 0)
	s.round.Board.Nodes = s.round.Board.Nodes.Delete("host1").Delete("host2")
	check("an old minority is left", s.after(10*second, ""), balancer.HealthDown, 1010, 1003*second)
	s.round.Alone = true
	check("without the board", s.after(second, ""), balancer.HealthDown, 1010, 1003*second)
	s.round.Now = s.round.Now.Add(second)
	s.Assign(s.round)
	s.Judge(verdicts{}.Set(target(0), balancer.HealthUp))
	s.round.Alone = false
	check("seen without the board", s.after(0, "u5 u7 u1020"), balancer.HealthUp, 1012, 2*second)
	check("found so, by a clock that is ahead", newSitting(1).after(0, "u1005"), balancer.HealthUp, 1000, 0)
	s = newSitting(3)
	s.after(0, "")
	check("seen, by clocks that are behind", s.after(second, "d5 d7"), balancer.HealthDown, 1001, 0)
}

// TestMissingVotes deletes votes. A checker without a vote must count as a checker until it has had
// enough time to vote, and again as soon as it votes. If no checker votes, each host must decide
// alone. While the board is unreachable, the time to vote must not run.
func TestMissingVotes(t *testing.T) {
	const limit = 3*2*time.Second + time.Second + 5*time.Second // fall x interval + timeout + VoteDelay
	s := newSitting(2)
	check := func(what string, d time.Duration, votes string, due bool, want balancer.Verdict, alone bool, timedOut ...balancer.NodeName) {
		t.Helper()
		if got := s.Overdue(s.round.Now.Add(d)); got != due {
			t.Errorf("%s: Overdue() = %v, want %v", what, got, due)
		}
		if got := s.after(d, votes); got.Verdict != want || got.Alone != alone || !slices.Equal(got.TimedOut, timedOut) {
			t.Errorf("%s: Verdict = %q, Alone = %v, TimedOut = %v; want %q, %v, %v", what, got.Verdict, got.Alone, got.TimedOut, want, alone, timedOut)
		}
	}
	const up, down = balancer.HealthUp, balancer.HealthDown
	check("both have voted", 0, "u5 u5", false, up, false)
	s.round.Board.Votes = s.round.Board.Votes.Delete(quorum.VoteKey{Target: target(0), Node: "host2"})
	check("one is missing", 0, "d9", false, up, false)
	check("not for long", limit-1, "", false, up, false)
	s.round.Alone = true
	check("the board is away", 2*limit, "", true, up, true)
	s.round.Alone = false
	check("it is back", 0, "", false, up, false)
	check("for long", limit, "", true, down, false, "host2")
	check("it votes", 0, "d9 u1", false, up, false)
	s.round.Board.Votes = snap.Map[quorum.VoteKey, *quorum.Vote]{}
	check("none is left", 0, "", false, up, false)
	check("none for long", limit, "", true, up, true, "host2", "host1")
}

// TestNoNodeMayCheck forbids the last node that may run programs to run them. The target's verdict
// must stay until the node has had enough time to permit programs again, and while the board is
// unreachable. Afterwards, the verdict must become unknown.
func TestNoNodeMayCheck(t *testing.T) {
	const limit = 3*2*time.Second + time.Second + 5*time.Second // rise x interval + timeout + VoteDelay
	s := newSitting(0)
	s.round.Wanted = s.round.Wanted.Set(target(0), subject(target(0), balancer.ExecHealth, true))
	programs := s.round.Board.Nodes.Set("host1", quorum.Checker{Exec: true})
	none := s.round.Board.Nodes.Set("host1", quorum.Checker{})
	check := func(what string, d time.Duration, want balancer.Verdict) {
		t.Helper()
		if got := s.after(d, ""); got.Verdict != want {
			t.Errorf("%s: verdict = %q, want %q", what, got.Verdict, want)
		}
	}
	s.round.Board.Nodes = programs
	s.after(0, "d5")
	s.round.Board.Nodes = none
	check("at once", time.Second, balancer.HealthDown)
	check("just before the end of its time", limit-1, balancer.HealthDown)
	s.round.Board.Nodes = programs
	check("it is back", time.Second, balancer.HealthDown)
	s.round.Board.Nodes = none
	check("gone again", time.Second, balancer.HealthDown)
	s.round.Alone = true
	check("without the board", 2*limit, balancer.HealthDown)
	s.round.Alone = false
	check("with the board", time.Second, balancer.HealthDown)
	if !s.Overdue(s.round.Now.Add(limit)) {
		t.Error("Overdue() = false after the time limit, want true")
	}
	check("at the end", limit, balancer.HealthUnknown)
	s.round.Board.Nodes = programs
	check("checked again", time.Second, balancer.HealthDown)
}
