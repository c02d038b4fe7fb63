package fleetchecks

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/dataplane/probe"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestFleetWithdraws makes a host unable to run a check. The host must withdraw its vote, so the
// only other host decides. It must vote again when it can run the check.
func TestFleetWithdraws(t *testing.T) {
	w := newWorld(t, 2, quick())
	w.join("host1")
	w.join("host2")
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	limp := func(is bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cannotRun["host2"] = is
	}
	limp(true)
	w.turn(true, w.targets[0])
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	if s, _ := w.hosts[0].checks.Standing(w.targets[1]); s.Verdict != balancer.HealthUp {
		t.Errorf("tally of the other target = %+v, want up", s)
	}
	limp(false)
	wait.For(t, 30*time.Second, "the host to vote again", func() bool {
		s, _ := w.hosts[0].checks.Standing(w.targets[0])
		return s.Votes["host2"].Verdict == balancer.HealthDown
	})
	w.turn(false, w.targets[0])
	w.waitUntilStable(w.hosts, balancer.HealthUp)
}

// TestFleetNeedsRights starts a host that lacks permission to read votes. This host must decide
// alone, and the other hosts must not wait for it. Once the host has the permission, it must join
// the other hosts. A host that may not write must report this.
func TestFleetNeedsRights(t *testing.T) {
	w := newWorld(t, 3, quick())
	w.lease, w.patience = 4*time.Second, 2*time.Second
	user := func(name string, write ...string) etcdkit.User {
		return etcdkit.User{Name: name, Password: name, Read: []string{"/vipd/health/"}, Write: write}
	}
	blind := user("host2", "/vipd/health/host2/")
	blind.Read = nil
	w.cluster.EnableAuth(user("host1", "/vipd/health/host1/"), blind, user("host3"))
	w.client = w.cluster.Client()
	for i := range 3 {
		w.join(fmt.Sprintf("host%d", i+1), func(h *simulated, o *Options) {
			o.Config.Username, o.Config.PasswordFile = h.name, filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(o.Config.PasswordFile, []byte(h.name), 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
	alone := func(n int) {
		t.Helper()
		wait.For(t, 30*time.Second, fmt.Sprintf("only %d to take part", n), func() bool {
			h := w.hosts[0].checks
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.board.Nodes.Len() == n && h.board.Votes.Len() == n*len(w.targets)
		})
	}
	alone(1)
	for _, down := range []bool{false, true} {
		w.turn(down, w.targets[0])
		everywhere(t, w.hosts, w.targets[0], map[bool]balancer.Verdict{false: balancer.HealthUp, true: balancer.HealthDown}[down])
	}
	w.turn(false, w.targets[0])
	alone(1)
	lacks := func(host int, right string) {
		t.Helper()
		wait.For(t, 30*time.Second, "the problem of "+w.hosts[host].name, func() bool {
			return slices.ContainsFunc(w.hosts[host].checks.Problems(true), func(p balancer.Problem) bool { return strings.Contains(p.Text, right) })
		})
	}
	lacks(1, "may not read /vipd/health/")
	lacks(2, "has no permission for /vipd/health/host3/")
	w.cluster.Grant("host2", "/vipd/health/")
	alone(2)
	if _, err := w.client.RoleGrantPermission(t.Context(), "host3", "/vipd/health/host3/", "/vipd/health/host30", clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		t.Fatal(err)
	}
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	// On a busy machine a late etcd causes the same events.
	for _, c := range []struct {
		host          int
		begins, again string
	}{
		{1, "this node checks the fleet's endpoints itself", "are shared again"},
		{2, "does not receive this node's health check results", "receives this node's health check results again"},
	} {
		h := w.hosts[c.host]
		wait.For(t, 30*time.Second, h.name+" to record that checks "+c.again, func() bool { return len(h.eventsWith(c.again)) > 0 })
		ended, begun := h.eventsWith(c.again), h.eventsWith(c.begins)
		if len(begun) < len(ended) || len(begun) > len(ended)+1 {
			t.Errorf("start and end events of %s = %+v, %+v, want an end for each start", h.name, begun, ended)
		}
		for _, e := range slices.Concat(begun, ended) {
			if ends := strings.Contains(e.Text, c.again); (e.Lasted > 0) != ends || (e.Cause == "") != ends {
				t.Errorf("%s: event = %+v, want a cause at the start and a duration at the end", h.name, e)
			}
		}
	}
}

// TestFleetGivesUp makes the votes in etcd unreadable for a node. The node may take part in the
// fleet's checks only until its lease expires.
func TestFleetGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Options{Node: "host1", Lease: 15 * time.Second, Record: func(events.Event) {}, Kick: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		said := func() (all string) {
			for _, after := range []time.Duration{0, 15*time.Second - 1, 1} {
				time.Sleep(after)
				all += fmt.Sprint(f.reads(time.Now()), " ")
			}
			return all
		}
		got := said()
		f.publish(quorum.Board{Connected: true}, nil)
		got += said()
		f.publish(quorum.Board{}, errors.New("away"))
		got += said()
		f.publish(quorum.Board{}, errors.New("away otherwise"))
		got += said()
		if want := "false false false true true true true true false false false false "; got != want {
			t.Errorf("participation = %s, want %s", got, want)
		}
	})
}

// TestFleetPassesOverTheSilent uses a host that never votes, because it defines a service with the
// same name itself. The other host must decide alone. Both must share the remaining checks.
func TestFleetPassesOverTheSilent(t *testing.T) {
	w := newWorld(t, 2, quick())
	w.join("host1")
	w.join("host2", func(h *simulated, _ *Options) { h.own = map[balancer.Target]bool{w.targets[0]: true} })
	everywhere(t, w.hosts, w.targets[0], balancer.HealthUp)
	w.turn(true, w.targets...)
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	everywhere(t, w.hosts, w.targets[1], balancer.HealthDown)
	wait.For(t, 30*time.Second, "the host to miss the other's vote, and no other", func() bool {
		one, _ := w.hosts[0].checks.Standing(w.targets[0])
		two, _ := w.hosts[0].checks.Standing(w.targets[1])
		return fmt.Sprint(one.TimedOut) == "[host2]" && !one.Alone && len(two.TimedOut) == 0 && len(two.Votes) == 2
	})
}

// TestFleetLeavesToNodes switches a service to each host's own checks, and then back to the fleet's
// checks. Each host must start with the last verdicts, and must record no more events.
func TestFleetLeavesToNodes(t *testing.T) {
	w := newWorld(t, 6, quick())
	w.unhurried()
	for i := range 5 {
		w.join(fmt.Sprintf("host%d", i+1))
	}
	w.turn(true, w.targets...)
	w.waitUntilStable(w.hosts, balancer.HealthDown)
	for _, h := range w.hosts {
		h.ever("")
	}
	hand := func(fleet bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for target, s := range w.wanted.All() {
			s.Fleet = fleet
			w.wanted = w.wanted.Set(target, s)
		}
		for _, h := range w.hosts {
			h.kick()
		}
	}
	hand(false)
	for _, h := range w.hosts {
		wait.For(t, 30*time.Second, h.name+" to check all", func() bool { return h.checking() == len(w.targets) })
	}
	never(t, w.hosts, balancer.HealthUnknown)
	hand(true)
	w.waitUntilStable(w.hosts, balancer.HealthDown)
	never(t, w.hosts, balancer.HealthUnknown)
	for _, h := range w.hosts {
		if told := h.eventsWith("is "); len(told) > len(w.targets) {
			t.Errorf("%s: events = %+v, want at most one for each target", h.name, told)
		}
	}
}

// TestVoteSaysWhatDecided changes the latest result after a verdict. The vote's cause must remain
// the result that led to the verdict.
func TestVoteSaysWhatDecided(t *testing.T) {
	rules := health.Rules{Interval: time.Second, FastInterval: time.Second, Rise: 2, Fall: 2}
	s := health.New(1, time.Now(), time.Second).Assume(balancer.HealthUp, time.Now())
	for i, r := range []struct {
		health.Result
		vote, cause string
	}{
		{health.Result{Outcome: health.Failed, Text: "no answer"}, "", ""},
		{health.Result{Outcome: health.Passed, Text: "connected"}, "up", "connected"},
		{health.Result{Outcome: health.Failed, Text: "no answer"}, "up", "connected"},
		{health.Result{Outcome: health.Failed, Text: "connection refused"}, "down", "connection refused"},
		{health.Result{Outcome: health.Passed, Text: "connected"}, "down", "connection refused"},
	} {
		s = s.After(rules, r.Result)
		vote, _ := voteOf(s, health.Result{}, false)
		if vote == nil && r.vote != "" || vote != nil && (string(vote.Verdict) != r.vote || vote.Cause != r.cause) {
			t.Errorf("after result %d: vote = %+v, want %q with the cause %q", i, vote, r.vote, r.cause)
		}
	}
}

// TestVoteOfSeveralChecks makes one of two checks unable to run. The vote must be "unknown" unless
// the other check decides alone.
func TestVoteOfSeveralChecks(t *testing.T) {
	state := func(v balancer.Verdict, o health.Outcome) probe.Status {
		return probe.Status{State: health.State{Verdict: v, Last: health.Result{Outcome: o, Text: string(o)}}}
	}
	for _, c := range []struct {
		need  balancer.HealthNeed
		other probe.Status
		want  health.Outcome
	}{
		{balancer.NeedAllHealth, state(balancer.HealthUp, health.Passed), health.NotRun},
		{balancer.NeedAllHealth, state(balancer.HealthDown, health.Failed), ""},
		{balancer.NeedAnyHealth, state(balancer.HealthUp, health.Passed), ""},
		{balancer.NeedAnyHealth, state(balancer.HealthDown, health.Failed), health.NotRun},
	} {
		status := state(balancer.HealthUp, health.Passed) // status describes the check that can run
		status.Health = &balancer.Health{Need: c.need}
		status.Checks = []probe.Status{state(balancer.HealthUp, health.NotRun), c.other}
		for range 2 {
			if got := unable(&status).Outcome; got != c.want {
				t.Errorf("need %s, other check is %s: result of the check that can't run = %q, want %q", c.need, c.other.State.Verdict, got, c.want)
			}
			slices.Reverse(status.Checks)
		}
		if vote, final := voteOf(status.State, unable(&status), true); c.want == health.NotRun && (final || vote == nil || vote.Cause != string(health.NotRun) || vote.Verdict != balancer.HealthUnknown) {
			t.Errorf("need %s: vote = %+v, final %t, want an unknown verdict with the reason", c.need, vote, final)
		}
	}
}

// TestKnowsAfterLeavingTheFleet makes a service need the fleet's checks again shortly after the
// node left the fleet's checks. The node must start with its own verdicts.
func TestKnowsAfterLeavingTheFleet(t *testing.T) {
	target := balancer.Target{Service: "web", Addr: netip.MustParseAddr("127.0.0.1"), Port: 9}
	subject := health.Subject{At: netip.MustParseAddrPort("127.0.0.1:9"), Health: &balancer.Health{Type: balancer.TCPHealth, Interval: time.Hour, Timeout: time.Second, Rise: 2, Fall: 2}}
	wanted := func(fleet bool) snap.Map[balancer.Target, health.Subject] {
		s := subject
		s.Fleet = fleet
		return snap.Map[balancer.Target, health.Subject]{}.Set(target, s)
	}
	f, err := New(Options{Node: "host1", Runner: probe.NewRunner(probe.Options{}), Log: slog.New(slog.DiscardHandler), Record: func(events.Event) {}, Kick: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	f.o.Runner.Assume(snap.Map[balancer.Target, balancer.Verdict]{}.Set(target, balancer.HealthDown))
	f.coordinator.Judge(f.o.Runner.Set(f.coordinator.Assign(quorum.Round{Wanted: wanted(false)})))
	if got := f.Verdicts(wanted(false), false).At(target); got != balancer.HealthDown {
		t.Fatalf("node's own checks: verdict = %q, want down", got)
	}
	f.forget()
	if got := f.Verdicts(wanted(true), false).At(target); got != balancer.HealthDown {
		t.Errorf("after the fleet checks again: verdict = %q, want down", got)
	}
}

// TestForgottenIsTold makes the verdict on an endpoint unknown. The history must contain an event
// for this.
func TestForgottenIsTold(t *testing.T) {
	target := balancer.Target{Service: "web", Addr: netip.MustParseAddr("127.0.0.1"), Port: 9}
	subject := health.Subject{At: netip.MustParseAddrPort("127.0.0.1:9"), Fleet: true, Health: &balancer.Health{Type: balancer.ExecHealth, Interval: time.Hour, Timeout: time.Second, Rise: 2, Fall: 2}}
	var told []string
	record := func(e events.Event) { told = append(told, e.Was+": "+e.Text+", "+e.Cause) }
	f, err := New(Options{Node: "host1", Runner: probe.NewRunner(probe.Options{}), Log: slog.New(slog.DiscardHandler), Record: record, Kick: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	f.coordinator.Assign(quorum.Round{Wanted: snap.Map[balancer.Target, health.Subject]{}.Set(target, subject), Waiting: true})
	f.recordLocked(snap.Map[balancer.Target, balancer.Verdict]{}.Set(target, balancer.HealthDown))
	if want := []string{"down: is no longer checked, no node is allowed to run its program"}; !slices.Equal(told, want) {
		t.Errorf("events = %q, want %q", told, want)
	}
}
