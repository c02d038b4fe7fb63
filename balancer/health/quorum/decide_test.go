package quorum_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
)

// ballots parses a list of votes such as "u5 d7". The letter is u (up), d (down) or a (abstention),
// and the number is when the vote was cast, in seconds.
func ballots(text string) []quorum.Vote {
	var all []quorum.Vote
	for word := range strings.FieldsSeq(text) {
		at, _ := strconv.Atoi(word[1:])
		all = append(all, quorum.Vote{
			Verdict: map[byte]balancer.Verdict{'u': balancer.HealthUp, 'd': balancer.HealthDown}[word[0]], Since: time.Unix(int64(at), 0),
		})
	}
	return all
}

// TestDecide calls Decide with votes, with and without an earlier verdict, and with and without
// votes of former checkers. Decide must return the listed verdict and time.
func TestDecide(t *testing.T) {
	const none = balancer.HealthUnknown
	const up, down = balancer.HealthUp, balancer.HealthDown
	for _, c := range []struct {
		what          string
		before        balancer.Verdict
		checkers      int
		votes, others string
		want          balancer.Verdict
		since         int64 // time of the verdict; 0 means that Decide returns no time
	}{
		{"two of three", up, 3, "d5 d7 u1", "", down, 7},
		{"two of three, the third has not voted", up, 3, "d5 d7", "", down, 7},
		{"one of three is outvoted", up, 3, "u5 d7 u1", "", up, 5},
		{"all three", down, 3, "u9 u8 u5", "", up, 8},
		{"as it was", up, 3, "u9 u8", "", up, 9},
		{"one vote of three changes nothing", up, 3, "d5", "", up, 0},
		{"nobody has voted", up, 3, "", "", up, 0},
		{"nobody has voted, nothing is known", none, 3, "", "", none, 0},
		{"the first of three does not decide", none, 3, "d5", "", none, 0},
		{"the first two of three that agree do", none, 3, "d5 d7", "", down, 7},
		{"the first two of three that don't agree do not", none, 3, "d5 u7", "", none, 0},
		{"both of two", up, 2, "d5 d7", "", down, 7},
		{"of two that disagree, who says so longer, whatever was", up, 2, "d5 u7", "", down, 5},
		{"of two that disagree, who says so longer, whatever was", down, 2, "u5 d7", "", up, 5},
		{"of two that disagree since the same time, down", up, 2, "u5 d5", "", down, 5},
		{"of two that disagree, earlier checkers decide nothing", none, 2, "u5 d7", "d1 d2", up, 5},
		{"one of two, the other has not voted", up, 2, "d5", "", up, 0},
		{"two that disagree, before nobody knows what was", none, 2, "u7 d5", "", down, 5},
		{"two that disagree, before nobody knows what was", none, 2, "u4 d5", "", up, 4},
		{"the only one", up, 1, "d5", "", down, 5},
		{"the only one, from the beginning", none, 1, "d5", "", down, 5},
		{"the only one that can", up, 3, "a1 a1 d5", "", down, 5},
		{"two that can", up, 3, "a1 d6 d5", "", down, 6},
		{"two that can, and disagree", up, 3, "a1 u6 d5", "", down, 5},
		{"one that can't, one that has not voted", up, 3, "a1 d5", "", up, 0},
		{"nobody can", up, 3, "a1 a1 a1", "", up, 0},
		{"no checkers", up, 0, "", "", up, 0},
		{"votes of earlier checkers inform a host that has just joined", none, 3, "", "u3 u2 d1", up, 2},
		{"earlier checkers can't overrule the earlier verdict", up, 3, "", "d3 d2 d1", up, 0},
		{"earlier checkers can't overrule the present ones", none, 3, "u4 u4", "d3 d2 d1", up, 4},
	} {
		verdict, since := quorum.Decide(c.before, c.checkers, ballots(c.votes), ballots(c.others))
		at := int64(0)
		if !since.IsZero() {
			at = since.Unix()
		}
		if verdict != c.want || at != c.since {
			t.Errorf("%s: earlier verdict %q, %d checkers, votes %q, other votes %q: verdict = %q since %d, want %q since %d",
				c.what, c.before, c.checkers, c.votes, c.others, verdict, at, c.want, c.since)
		}
	}
}
