package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vipd/cmd/internal/cli"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/schema"
	"vipd/test/wait"
)

// awaitedText formats the nodes that a revisionWait still awaits, and the other nodes' results.
func awaitedText(v *revisionWait, lag []laggard) string {
	var all []string
	for _, l := range lag {
		all = append(all, l.Node+" "+l.Why)
	}
	return fmt.Sprintf("%s | done %s | gone %s", strings.Join(all, ", "), strings.Join(v.done, " "), strings.Join(v.left, " "))
}

func live(name string, revision int64, drains ...schema.NodeDrain) fleet.Node {
	return fleet.Node{Name: name, Live: &schema.NodeLive{}, Status: &schema.NodeStatus{Revision: revision, Drains: drains}}
}

func TestRevisionWait(t *testing.T) {
	start := time.Now()
	config := fleet.Node{Name: "old", Config: &schema.NodeConfig{Mode: "ipvs"}}
	starting := fleet.Node{Name: "new", Live: &schema.NodeLive{}}
	type poll struct {
		after time.Duration
		nodes []fleet.Node
		want  string
	}
	for name, test := range map[string]struct {
		named []string
		polls []poll
	}{
		"all apply it": {polls: []poll{
			{0, []fleet.Node{live("a", 4), live("b", 5), config}, "a is at revision 4 | done b | gone "},
			{1, []fleet.Node{live("a", 6), live("b", 5)}, " | done a b | gone "},
		}},
		"a node joins": {polls: []poll{
			{0, []fleet.Node{live("a", 4)}, "a is at revision 4 | done  | gone "},
			{1, []fleet.Node{live("a", 5), starting}, "new has no status yet | done a | gone "},
			{2, []fleet.Node{live("a", 5), live("new", 0)}, "new is at revision 0 | done a | gone "},
			{3, []fleet.Node{live("a", 5), live("new", 7)}, " | done a new | gone "},
		}},
		"a node dies": {polls: []poll{
			{0, []fleet.Node{live("a", 5), live("b", 4)}, "b is at revision 4 | done a | gone "},
			{absence - 1, []fleet.Node{live("a", 5)}, "b has disappeared | done a | gone "},
			{absence, []fleet.Node{live("a", 5)}, " | done a | gone b"},
		}},
		"a node restarts": {polls: []poll{
			{0, []fleet.Node{live("a", 5), live("b", 4)}, "b is at revision 4 | done a | gone "},
			{1, []fleet.Node{live("a", 5)}, "b has disappeared | done a | gone "},
			{2, []fleet.Node{live("a", 5), live("b", 0)}, "b is at revision 0 | done a | gone "},
			{absence + 1, []fleet.Node{live("a", 5)}, "b has disappeared | done a | gone "},
			{absence + 3, []fleet.Node{live("a", 5), live("b", 5)}, " | done a b | gone "},
		}},
		"a node applies it and dies": {polls: []poll{
			{0, []fleet.Node{live("a", 5), live("b", 4)}, "b is at revision 4 | done a | gone "},
			{1, []fleet.Node{live("b", 4)}, "b is at revision 4 | done a | gone "},
			{2, []fleet.Node{live("b", 5)}, " | done a b | gone "},
		}},
		"named": {named: []string{"c", "a"}, polls: []poll{
			{0, []fleet.Node{live("a", 5), live("b", 4)}, "c does not exist | done a | gone "},
			{1, []fleet.Node{live("a", 5), live("b", 4), live("c", 4)}, "c is at revision 4 | done a | gone "},
			{2 * absence, []fleet.Node{live("a", 5)}, "c has disappeared | done a | gone "},
			{9 * absence, []fleet.Node{live("c", 5)}, " | done a c | gone "},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			v := &revisionWait{revision: 5, named: test.named}
			for _, l := range test.polls {
				if got := awaitedText(v, v.awaited(l.nodes, start.Add(l.after))); got != l.want {
					t.Errorf("after %s: state = %q, want %q", l.after, got, l.want)
				}
			}
		})
	}
}

// TestWaitOmittedDrains waits for a node whose status omits some drains. The wait must last as long
// as an omitted drain may have connections.
func TestWaitOmittedDrains(t *testing.T) {
	v := &revisionWait{revision: 5, drains: func(d schema.NodeDrain) bool { return d.Service == "web" }}
	waits, done := "a has 7 draining endpoints that its status omits | done  | gone ", " | done a | gone "
	for name, c := range map[string]struct {
		drains []schema.NodeDrain
		want   string
	}{
		"the last has some": {[]schema.NodeDrain{{Service: "dns", Active: 9}, {Service: "db", Active: 2}}, waits},
		"the last has none": {[]schema.NodeDrain{{Service: "dns", Active: 9}, {Service: "db"}}, done},
		"it tells of none":  {nil, waits},
	} {
		n := live("a", 5, c.drains...)
		n.Status.DrainsOmitted = 7
		if got := awaitedText(v, v.awaited([]fleet.Node{n}, time.Now())); got != c.want {
			t.Errorf("%s: awaited nodes = %q, want %q", name, got, c.want)
		}
	}
}

// TestWaitLaw runs random histories of nodes. A revisionWait must finish exactly when each present
// node has finished, and each missing node has been absent for long enough.
func TestWaitLaw(t *testing.T) {
	for seed := range uint64(wait.Soak(60, 300)) {
		r := rand.New(rand.NewPCG(seed, 7))
		v := &revisionWait{revision: 10, drains: func(d schema.NodeDrain) bool { return d.Service == "web" }}
		now := time.Now()
		type state struct {
			there, done bool
			last        time.Time
		}
		model := map[string]state{}
		for step := range 60 {
			now = now.Add(time.Duration(r.IntN(8)) * time.Second)
			var nodes []fleet.Node
			for _, name := range []string{"a", "b", "c"} {
				if r.IntN(3) == 0 {
					s := model[name]
					s.there = false
					model[name] = s
					continue
				}
				n := live(name, 8+int64(r.IntN(4)), schema.NodeDrain{Service: "web", Active: uint64(r.IntN(2))}, schema.NodeDrain{Service: "dns", Active: 9})
				nodes = append(nodes, n)
				model[name] = state{true, n.Status.Revision >= 10 && n.Status.Drains[0].Active == 0, now}
			}
			lag := v.awaited(nodes, now)
			var want []string
			for _, name := range []string{"a", "b", "c"} {
				if s := model[name]; !s.last.IsZero() && !s.done && (s.there || now.Sub(s.last) < absence) {
					want = append(want, name)
				}
			}
			var got []string
			for _, l := range lag {
				got = append(got, l.Node)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: awaited nodes = %q, want %q", seed, step, got, want)
			}
		}
	}
}

func TestWait(t *testing.T) {
	f := newStage(t)
	one, two := f.start("gw1", atRevision(40)), f.start("gw2", atRevision(39))
	f.waitForStatuses(2)
	l := f.begin("wait", "--revision", "41")
	l.waitForStderr("vipctl: waiting: gw1 is at revision 40, gw2 is at revision 39\n")
	one.setStatus(atRevision(41))
	three := f.start("gw3", nil) // a node that joins and lags behind
	f.waitForNodes(3)
	two.setStatus(atRevision(50))
	f.waitForPoll()
	f.waitForStatuses(2)
	select {
	case <-l.ended:
		t.Errorf("stdout = %s, want the wait to include the node that joined", l.out)
	default:
	}
	three.setStatus(atRevision(41))
	l.waitForExit(cli.ExitDone)
	if want := "revision 41 is applied on 3 nodes\n"; l.out.String() != want {
		t.Errorf("stdout = %q, want %q", l.out, want)
	}

	// The timeout message must name the nodes that lag behind.
	_, stderr, timeout := f.failsAfterTimeout("wait", "--revision", "42")
	want := "vipctl: revision 42 is not applied on all nodes after " + timeout + ": gw1 is at revision 41, gw3 is at revision 41\n"
	if !strings.HasSuffix(stderr, want) || timeout == shortest && stderr != want {
		t.Errorf("stderr = %q, want %q", stderr, want)
	}
	stdout, _, _ := f.failsAfterTimeout("wait", "--revision", "42", "-o", "json", "--nodes", "gw2, gw9,gw1")
	var got waited
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	wanted := waited{42, []string{"gw2"}, []laggard{{Node: "gw1", Revision: 41, Why: "is at revision 41"}, {Node: "gw9", Why: "does not exist"}}, []string{}, nil}
	if d := cmp.Diff(wanted, got); d != "" {
		t.Errorf("JSON (-want +got):\n%s", d)
	}

	// A named node must be awaited until it appears.
	l = f.begin("wait", "--revision", "42", "--nodes", "gw4")
	l.waitForStderr("vipctl: waiting: gw4 does not exist\n")
	f.start("gw4", atRevision(42))
	l.waitForExit(cli.ExitDone)
	if want := "revision 42 is applied on 1 node\n"; l.out.String() != want {
		t.Errorf("stdout = %q, want %q", l.out, want)
	}
}

const shortest = "1s"

// failsAfterTimeout runs a command line that must fail after a timeout. It returns the output and
// the timeout, which is a second, or more if etcd was too busy to answer in time.
func (f *stage) failsAfterTimeout(args ...string) (stdout, stderr, timeout string) {
	f.t.Helper()
	for _, timeout = range []string{shortest, "10s", "1m0s"} {
		stdout, stderr = f.do(cli.ExitFailed, append(args, "--timeout", timeout)...)
		if !strings.Contains(stderr, "etcd did not answer within") {
			break
		}
	}
	return stdout, stderr, timeout
}

// waitForNodes waits until etcd has n nodes, with or without a status.
func (f *stage) waitForNodes(n int) {
	f.t.Helper()
	wait.For(f.t, within, "the nodes", func() bool {
		nodes, err := f.writer.Statuses(f.t.Context())
		return err == nil && len(nodes) == n
	})
}

// TestWaitForDeadNode stops a node. The wait must continue until the node has been absent for long
// enough, and then report the node.
func TestWaitForDeadNode(t *testing.T) {
	f := newStage(t)
	f.start("gw1", atRevision(41))
	two := f.start("gw2", atRevision(40))
	f.waitForStatuses(2)
	l := f.begin("wait", "--revision", "41")
	l.waitForStderr("waiting: gw2 is at revision 40")
	two.stop()
	f.waitForNodes(1)
	f.waitForPoll()
	l.ahead.Store(int64(absence))
	l.waitForExit(cli.ExitDone)
	if want := "vipctl: no longer waiting for removed nodes: gw2\n"; !strings.HasSuffix(l.err.String(), want) {
		t.Errorf("stderr = %q, want %q at the end", l.err, want)
	}
	if want := "revision 41 is applied on 1 node\n"; l.out.String() != want {
		t.Errorf("stdout = %q, want %q", l.out, want)
	}
}

func TestWaitWithoutNodes(t *testing.T) {
	f := newStage(t)
	_, stderr := f.do(cli.ExitFailed, "wait", "--revision", "41")
	if want := "vipctl: no node runs vipd: etcd has no node status under this prefix\n"; stderr != want {
		t.Errorf("stderr = %q, want %q", stderr, want)
	}
}

// TestWaitThroughAnOutage stops etcd. A wait that has already received an answer must continue
// during the outage. A wait that has received no answer must fail after firstPatience.
func TestWaitThroughAnOutage(t *testing.T) {
	f := newStage(t)
	one, two := f.start("gw1", atRevision(41)), f.start("gw2", atRevision(40))
	f.waitForStatuses(2)
	l := f.begin("wait", "--revision", "41")
	l.waitForStderr("waiting: gw2 is at revision 40")
	f.Members[0].Kill()
	l.waitForStderr("; trying again\n")
	l.ahead.Store(int64(fleetPatience / 2))
	one.setStatus(atRevision(41))
	two.setStatus(atRevision(42))
	f.Members[0].Start()
	l.waitForExit(cli.ExitDone)
	if want := "revision 41 is applied on 2 nodes\n"; l.out.String() != want {
		t.Errorf("stdout = %q, want %q", l.out, want)
	}

	f.Members[0].Kill()
	l = f.begin("wait", "--revision", "41")
	l.waitForStderr("; trying again\n")
	l.ahead.Store(int64(firstPatience + time.Second))
	l.waitForExit(cli.ExitFailed)
	_, stderr := f.do(cli.ExitFailed, "wait", "--revision", "41", "--timeout", "1s")
	if !strings.HasSuffix(stderr, "vipctl: etcd did not answer within 1s\n") {
		t.Errorf("stderr = %q, want an etcd timeout", stderr)
	}
}

func TestWaitInterrupted(t *testing.T) {
	f := newStage(t)
	f.start("gw1", atRevision(40))
	f.waitForStatuses(1)
	l := f.begin("wait", "--revision", "41")
	l.waitForStderr("waiting: gw1")
	l.stop()
	l.waitForExit(cli.ExitInterrupted)
	if want := "vipctl: interrupted; revision 41 is not applied on all nodes: gw1 is at revision 40\n"; !strings.HasSuffix(l.err.String(), want) {
		t.Errorf("stderr = %q, want %q at the end", l.err, want)
	}
}

// TestNames formats up to seven awaited nodes. Only the first five may be named, and the remaining
// nodes must be counted.
func TestNames(t *testing.T) {
	var lag []laggard
	for i := range 7 {
		lag = append(lag, laggard{Node: fmt.Sprint("gw", i), Why: "does not exist"})
	}
	for n, want := range map[int]string{
		0: "",
		1: "gw0 does not exist",
		5: "gw0 does not exist, gw1 does not exist, gw2 does not exist, gw3 does not exist, gw4 does not exist",
		6: "gw0 does not exist, gw1 does not exist, gw2 does not exist, gw3 does not exist, gw4 does not exist and 1 node more",
		7: "gw0 does not exist, gw1 does not exist, gw2 does not exist, gw3 does not exist, gw4 does not exist and 2 nodes more",
	} {
		if got := names(lag[:n]); got != want {
			t.Errorf("%d nodes: names = %q, want %q", n, got, want)
		}
	}
}
