package fleetchecks

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
)

// TestDissentIsToldOnce makes a node disagree with the fleet. The node must record the disagreement
// once, once the other nodes have had time to reach the same verdict. It must also record the end
// of the disagreement.
func TestDissentIsToldOnce(t *testing.T) {
	var votes snap.Map[balancer.Target, *quorum.Vote]
	var fleet snap.Map[balancer.Target, balancer.Verdict]
	var wanted snap.Map[balancer.Target, health.Subject]
	h := &balancer.Health{Interval: 2 * time.Second, Timeout: time.Second, Rise: 2, Fall: 3}
	for i := range 3 {
		target := balancer.Target{Service: "web", Addr: netip.AddrFrom4([4]byte{10, 1, 1, byte(i)}), Port: 80}
		votes = votes.Set(target, &quorum.Vote{Verdict: []balancer.Verdict{balancer.HealthUp, balancer.HealthDown, balancer.HealthUnknown}[i], Cause: "no answer"})
		fleet, wanted = fleet.Set(target, balancer.HealthUp), wanted.Set(target, health.Subject{Health: h})
	}
	var d dissent
	start := time.Unix(1e9, 0)
	recorded := map[int]string{}
	for s := range 60 {
		if s == 40 {
			votes = snap.Map[balancer.Target, *quorum.Vote]{}
		}
		if e, changed := d.look(votes, fleet, wanted, 15*time.Second, start.Add(time.Duration(s)*time.Second)); changed {
			recorded[s] = e.Text + ": " + e.Cause + " " + e.Lasted.String()
		}
	}
	const begins = "this node's own checks are outvoted: it finds web 10.1.1.1:80 down, but most other nodes find it up: no answer 0s"
	const ends = "this node's checks agree with the majority again:  40s"
	if len(recorded) != 2 || recorded[23] != begins || recorded[40] != ends {
		t.Errorf("events by second = %v, want one event at 23 s and one at 40 s", recorded)
	}
}

// TestOtherwise compares the verdicts of nodes with the fleet's verdict. A node may report its own
// verdict only if the fleet's verdict differs.
func TestOtherwise(t *testing.T) {
	up := quorum.Vote{Verdict: balancer.HealthUp, Cause: "connected"}
	s := quorum.Tally{Verdict: balancer.HealthUp, Checkers: []balancer.NodeName{"a", "b", "c"}, Votes: map[balancer.NodeName]quorum.Vote{
		"a": up, "b": {Verdict: balancer.HealthDown, Cause: "no answer within 1s"}, "c": {Cause: "no such file"}, "d": {Verdict: balancer.HealthDown},
	}}
	for node, want := range map[balancer.NodeName]string{
		"a": "", "b": "up according to 1 of 3 nodes; this node: no answer within 1s", "c": "up according to 1 of 3 nodes; this node can't check: no such file", "d": "", "e": "",
	} {
		if got := Otherwise(node, &s); got != want {
			t.Errorf("Otherwise(%s) = %q, want %q", node, got, want)
		}
	}
	s.Alone = true
	if got := Otherwise("b", &s); got != "" {
		t.Errorf("node that decides alone: report = %q, want none", got)
	}
}
