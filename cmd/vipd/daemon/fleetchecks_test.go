package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/cmd/internal/journal"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// everywhere waits until hosts go by a verdict of a target.
func everywhere(t *testing.T, hosts []*simulated, of balancer.Target, want balancer.Verdict) {
	t.Helper()
	for _, h := range hosts {
		wait.For(t, 30*time.Second, fmt.Sprintf("%s to take %s for %q", h.name, of, want), func() bool { return h.verdict(of) == want })
	}
}

// never fails the test if a host went by a verdict since it was asked last.
func never(t *testing.T, hosts []*simulated, v balancer.Verdict) {
	t.Helper()
	for _, h := range hosts {
		if h.ever(v) {
			t.Errorf("%s took a target for %q", h.name, v)
		}
	}
}

// TestFleetOutvotes has a host that sees everything down be outvoted, and one that can't check leave the rest to others;
// and the journal have each change once, with who says so.
func TestFleetOutvotes(t *testing.T) {
	w := newWorld(t, 10, quick())
	w.unhurried()
	for i := range 3 {
		w.join(fmt.Sprintf("host%d", i+1))
	}
	w.settled(w.hosts, balancer.HealthUp)
	w.mu.Lock()
	w.liars["host2"] = true
	w.mu.Unlock()
	for _, target := range w.targets {
		wait.For(t, 30*time.Second, "the host to say that all is down", func() bool {
			s, _ := w.hosts[0].checks.standing(target)
			return s.Votes["host2"].Verdict == balancer.HealthDown
		})
	}
	never(t, w.hosts, balancer.HealthDown)
	w.turn(true, w.targets[3])
	everywhere(t, w.hosts, w.targets[3], balancer.HealthDown)
	w.turn(false, w.targets[3])
	w.settled(w.hosts, balancer.HealthUp)
	for _, h := range w.hosts {
		events, _ := h.events.Read(0, 0)
		var said []string
		for _, e := range events {
			if e.Endpoint == w.targets[3].Address() {
				said = append(said, e.Text)
			}
			if e.Text == "is down" && (!strings.Contains(e.Cause, " of 3 nodes: ") || !strings.Contains(e.Cause, "connection refused") || e.Was != "up" || e.Lasted <= 0) {
				t.Errorf("%s: %+v", h.name, e)
			}
		}
		if got := strings.Join(said, ", "); got != "is up, is down, is up again" {
			t.Errorf("%s has recorded: %s", h.name, got)
		}
		s, ok := h.checks.standing(w.targets[3])
		if !ok || s.Verdict != balancer.HealthUp || s.Alone || len(s.Checkers) != 3 || s.Votes["host2"].Verdict != balancer.HealthDown || s.Votes["host2"].Cause != "connection refused" {
			t.Errorf("%s knows %+v", h.name, s)
		}
	}
	w.mu.Lock()
	delete(w.liars, "host2")
	w.lame["host4"] = true
	w.mu.Unlock()
	w.hosts[0].stop()
	w.join("host4")
	rest := w.hosts[1:]
	w.settled(rest, balancer.HealthUp)
	w.turn(true, w.targets[5])
	everywhere(t, rest, w.targets[5], balancer.HealthDown)
	if s, _ := rest[0].checks.standing(w.targets[5]); s.Votes["host4"].Verdict != balancer.HealthUnknown || s.Votes["host4"].Cause != "no such certificate file" {
		t.Errorf("who can't check says %+v", s.Votes["host4"])
	}
}

// TestFleetWithdraws has a host take its vote back when it can't check any more, so that the only other one decides, and
// vote again when it can.
func TestFleetWithdraws(t *testing.T) {
	w := newWorld(t, 2, quick())
	w.join("host1")
	w.join("host2")
	w.settled(w.hosts, balancer.HealthUp)
	limp := func(is bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lame["host2"] = is
	}
	limp(true)
	w.turn(true, w.targets[0])
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	if s, _ := w.hosts[0].checks.standing(w.targets[1]); s.Verdict != balancer.HealthUp {
		t.Errorf("the other is %+v", s)
	}
	limp(false)
	wait.For(t, 30*time.Second, "the host to vote again", func() bool {
		s, _ := w.hosts[0].checks.standing(w.targets[0])
		return s.Votes["host2"].Verdict == balancer.HealthDown
	})
	w.turn(false, w.targets[0])
	w.settled(w.hosts, balancer.HealthUp)
}

// TestFleetNeedsRights has a host that may not read what others find check for itself, not be waited for, and take part
// once it may, until it may no more; and one that may not write be told of it.
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
		w.join(fmt.Sprintf("host%d", i+1), func(h *simulated, o *fleetChecksOptions) {
			o.config.Username, o.config.PasswordFile = h.name, filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(o.config.PasswordFile, []byte(h.name), 0o600); err != nil {
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
	w.cluster.Grant("host2", "/vipd/health/")
	alone(2)
	if _, err := w.client.RoleGrantPermission(t.Context(), "host3", "/vipd/health/host3/", "/vipd/health/host30", clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		t.Fatal(err)
	}
	w.settled(w.hosts, balancer.HealthUp)
	wait.For(t, 30*time.Second, "the host to rely on the others", func() bool { return len(w.hosts[1].told("are shared again")) > 0 })
	for _, c := range []struct {
		host int
		told string
		want []string
	}{
		{1, "this node checks the fleet's endpoints itself", []string{"may not read /vipd/health/"}},
		{1, "are shared again", []string{""}},
		{2, "does not hear of this node's health checks", []string{"has no right to /vipd/health/host3/live"}},
		{2, "hears of this node's health checks again", []string{""}},
	} {
		events := w.hosts[c.host].told(c.told)
		if len(events) != len(c.want) {
			t.Errorf("%s has recorded %d times that %s", w.hosts[c.host].name, len(events), c.told)
		}
		for i, e := range events {
			if !strings.Contains(e.Cause, c.want[i]) || (e.Lasted > 0) != (c.want[i] == "") {
				t.Errorf("%s: %+v", w.hosts[c.host].name, e)
			}
		}
	}
}

// TestFleetGivesUp has a node that can't read what others find any more take part for as long as its lease, and no longer.
func TestFleetGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := fleetChecksOf(fleetChecksOptions{node: "host1", lease: 15 * time.Second, record: func(journal.Event) {}, kick: func() {}})
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
			t.Errorf("it takes part: %s; want %s", got, want)
		}
	})
}

// TestFleetPassesOverTheSilent has a host decide for itself where the other, whose own file has a service of that name,
// never votes; and both share the rest.
func TestFleetPassesOverTheSilent(t *testing.T) {
	w := newWorld(t, 2, quick())
	w.join("host1")
	w.join("host2", func(h *simulated, _ *fleetChecksOptions) { h.own = map[balancer.Target]bool{w.targets[0]: true} })
	everywhere(t, w.hosts, w.targets[0], balancer.HealthUp)
	w.turn(true, w.targets...)
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	everywhere(t, w.hosts, w.targets[1], balancer.HealthDown)
	wait.For(t, 30*time.Second, "the host to miss the other's vote, and no other", func() bool {
		one, _ := w.hosts[0].checks.standing(w.targets[0])
		two, _ := w.hosts[0].checks.standing(w.targets[1])
		return fmt.Sprint(one.Mute) == "[host2]" && !one.Alone && len(two.Mute) == 0 && len(two.Votes) == 2
	})
}

// TestFleetLeavesToNodes has each host go on from what the fleet knew when a service asks for its own checks instead, and
// record nothing of it; and the other way round.
func TestFleetLeavesToNodes(t *testing.T) {
	w := newWorld(t, 6, quick())
	w.unhurried()
	for i := range 5 {
		w.join(fmt.Sprintf("host%d", i+1))
	}
	w.turn(true, w.targets...)
	w.settled(w.hosts, balancer.HealthDown)
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
	w.settled(w.hosts, balancer.HealthDown)
	never(t, w.hosts, balancer.HealthUnknown)
	for _, h := range w.hosts {
		if told := h.told("is "); len(told) > len(w.targets) {
			t.Errorf("%s has recorded %+v", h.name, told)
		}
	}
}

// TestVoteSaysWhatDecided: the cause of a vote is that of the verdict, not what the latest result says.
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
		vote, _ := voteOf(s, false)
		if vote == nil && r.vote != "" || vote != nil && (string(vote.Verdict) != r.vote || vote.Cause != r.cause) {
			t.Errorf("after result %d: %+v, want %q: %q", i, vote, r.vote, r.cause)
		}
	}
}

// TestFleetOverTCP has three hosts share the checks of servers that listen and end.
func TestFleetOverTCP(t *testing.T) {
	w := newWorld(t, 3, quick())
	w.unhurried()
	w.real = true
	listeners := map[balancer.Target]net.Listener{}
	for _, target := range w.targets {
		l, err := net.Listen("tcp", netip.AddrPortFrom(target.Addr, target.Port).String())
		if err != nil {
			t.Fatal(err)
		}
		listeners[target] = l
		t.Cleanup(func() { _ = l.Close() })
	}
	for i := range 3 {
		w.join(fmt.Sprintf("host%d", i+1))
	}
	w.settled(w.hosts, balancer.HealthUp)
	if err := listeners[w.targets[1]].Close(); err != nil {
		t.Fatal(err)
	}
	everywhere(t, w.hosts, w.targets[1], balancer.HealthDown)
	for _, h := range w.hosts {
		s, _ := h.checks.standing(w.targets[1])
		for n, v := range s.Votes {
			if v.Verdict == balancer.HealthDown && !strings.HasPrefix(v.Cause, "connection refused") {
				t.Errorf("%s says %+v", n, v)
			}
		}
		if h.verdict(w.targets[0]) != balancer.HealthUp || h.verdict(w.targets[2]) != balancer.HealthUp {
			t.Errorf("%s takes the others for %q and %q", h.name, h.verdict(w.targets[0]), h.verdict(w.targets[2]))
		}
	}
}

// behind puts a relay between a host and etcd.
func behind(h *simulated, o *fleetChecksOptions) {
	h.relay = etcdkit.NewRelay(h.t, strings.TrimPrefix(o.config.Endpoints[0], "http://"))
	o.config.Endpoints = []string{"http://" + h.relay.Addr()}
}

// TestFleetReplacesCheckers has a host that no longer reaches etcd be replaced as a checker when its lease has ended, and
// nobody notice, itself included; and have it back when it does.
func TestFleetReplacesCheckers(t *testing.T) {
	w := newWorld(t, 20, quick())
	lost := w.join("host1", behind)
	for i := range 4 {
		w.join(fmt.Sprintf("host%d", i+2))
	}
	w.settled(w.hosts, balancer.HealthUp)
	never(t, w.hosts, balancer.HealthDown)
	lost.relay.Cut()
	w.settled(w.hosts[1:], balancer.HealthUp)
	wait.For(t, 30*time.Second, "the lost host to check everything itself", func() bool { return lost.checking() == len(w.targets) })
	never(t, w.hosts, balancer.HealthDown)
	w.turn(true, w.targets[7])
	everywhere(t, w.hosts, w.targets[7], balancer.HealthDown)
	w.turn(false, w.targets[7])
	everywhere(t, w.hosts, w.targets[7], balancer.HealthUp)
	never(t, w.hosts, balancer.HealthUnknown)
	lost.relay.Heal()
	for _, h := range w.hosts {
		h.ever("")
	}
	w.settled(w.hosts, balancer.HealthUp)
	never(t, w.hosts, balancer.HealthDown)
}

// TestFleetWithoutEtcd has each host check everything itself while etcd is away, beginning with what the fleet knew; and
// nothing flap when it comes back, though what it holds is old by then.
func TestFleetWithoutEtcd(t *testing.T) {
	w := newWorld(t, 20, quick())
	for i := range 5 {
		w.join(fmt.Sprintf("host%d", i+1))
	}
	down := w.targets[4]
	w.settled(w.hosts, balancer.HealthUp)
	w.cluster.Kill()
	for _, h := range w.hosts {
		wait.For(t, 30*time.Second, h.name+" to check everything", func() bool { return h.checking() == len(w.targets) })
	}
	never(t, w.hosts, balancer.HealthDown)
	w.turn(true, down)
	everywhere(t, w.hosts, down, balancer.HealthDown)
	fell := time.Now()
	for _, h := range w.hosts { // from here on it must not be taken for up, not even for a moment
		h.ever("")
	}
	w.cluster.Start()
	w.client = w.cluster.Client()
	for _, h := range w.hosts {
		wait.For(t, 60*time.Second, h.name+" to rely on the fleet again", func() bool {
			h.checks.mu.Lock()
			alone := h.checks.aloneLocked()
			h.checks.mu.Unlock()
			return !alone && h.checking() < len(w.targets) && len(h.told("shared again")) > 0
		})
		if s, _ := h.checks.standing(down); s.Since.IsZero() || s.Since.After(fell) || s.Lasted <= 0 {
			t.Errorf("%s: it is down since %s, after %s; want since before %s", h.name, s.Since, s.Lasted, fell)
		}
		if away, back := h.told("endpoints itself"), h.told("shared again"); len(away) != 1 || len(back) != 1 || away[0].Cause == "" || back[0].Lasted <= 0 {
			t.Errorf("%s has recorded %+v, %+v", h.name, away, back)
		}
		h.seen.Lock()
		for _, all := range h.history {
			for _, target := range w.targets {
				if want := map[bool]balancer.Verdict{true: balancer.HealthDown, false: balancer.HealthUp}[target == down]; all.At(target) != want {
					t.Errorf("%s took %s for %q when etcd was back", h.name, target, all.At(target))
				}
			}
		}
		h.seen.Unlock()
	}
	w.turn(false, down)
	w.settled(w.hosts, balancer.HealthUp)
}

// TestFleetBeginsWithoutEtcd has a host that starts while etcd is away check everything itself.
func TestFleetBeginsWithoutEtcd(t *testing.T) {
	w := newWorld(t, 5, quick())
	w.turn(true, w.targets[0])
	w.cluster.Kill()
	h := w.join("host1")
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	everywhere(t, w.hosts, w.targets[1], balancer.HealthUp)
	if problems := h.checks.problems(true); len(problems) == 0 || !strings.Contains(problems[0].Text, "checks for itself: ") {
		t.Errorf("problems: %v", problems)
	}
	w.turn(false, w.targets[0])
	w.cluster.Start()
	w.client = w.cluster.Client()
	w.settled(w.hosts, balancer.HealthUp)
	wait.For(t, 30*time.Second, "the problems to be over", func() bool { return len(h.checks.problems(true)) == 0 })
}

// TestFleetRunsPrograms has checks that run programs be made by the hosts that may, and their verdicts count on the rest,
// while etcd is away too.
func TestFleetRunsPrograms(t *testing.T) {
	w := newWorld(t, 6, quick())
	for target, s := range w.wanted.All() {
		program := *s.Health
		program.Type, program.Command = balancer.ExecHealth, []string{"/bin/true"}
		s.Health = &program
		w.wanted = w.wanted.Set(target, s)
	}
	may := func(h *simulated, _ *fleetChecksOptions) { h.exec = true }
	w.turn(true, w.targets[0])
	for i := range 2 {
		w.join(fmt.Sprintf("may%d", i+1), may)
		w.join(fmt.Sprintf("not%d", i+1))
	}
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	everywhere(t, w.hosts, w.targets[1], balancer.HealthUp)
	s, _ := w.hosts[1].checks.standing(w.targets[1])
	if len(s.Checkers) != 2 || !strings.HasPrefix(string(s.Checkers[0]), "may") || !strings.HasPrefix(string(s.Checkers[1]), "may") {
		t.Errorf("the checkers are %v", s.Checkers)
	}
	w.cluster.Kill()
	for _, h := range w.hosts {
		wait.For(t, 30*time.Second, h.name+" to be alone", func() bool { s, _ := h.checks.standing(w.targets[1]); return s.Alone })
		if want := map[bool]int{true: len(w.targets)}[h.exec]; h.checking() != want {
			t.Errorf("%s checks %d targets, want %d", h.name, h.checking(), want)
		}
	}
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	everywhere(t, w.hosts, w.targets[1], balancer.HealthUp)
}

// TestFleetOnlyWhereAsked has a host leave nothing in etcd once no service asks for the fleet's checks, and take part again
// when one does.
func TestFleetOnlyWhereAsked(t *testing.T) {
	w := newWorld(t, 3, quick())
	h := w.join("host1")
	keys := func() int {
		answer, err := w.client.Get(t.Context(), "/vipd/health/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return int(answer.Count)
	}
	all := w.wanted
	want := func(wanted snap.Map[balancer.Target, health.Subject], n int) {
		t.Helper()
		w.mu.Lock()
		w.wanted = wanted
		w.mu.Unlock()
		h.kick()
		wait.For(t, 30*time.Second, fmt.Sprintf("%d keys", n), func() bool { return keys() == n })
	}
	want(all, 4)
	want(all.Delete(w.targets[0]), 3)
	own := all
	for target, s := range all.All() {
		s.Fleet = false
		own = own.Set(target, s)
	}
	want(own, 0)
	wait.For(t, 30*time.Second, "the host to check for itself", func() bool { return h.checking() == 3 && h.verdict(w.targets[0]) == balancer.HealthUp })
	want(all, 4)
	w.settled(w.hosts, balancer.HealthUp)
}
