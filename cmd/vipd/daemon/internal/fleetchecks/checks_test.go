package fleetchecks

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

func everywhere(t *testing.T, hosts []*simulated, of balancer.Target, want balancer.Verdict) {
	t.Helper()
	for _, h := range hosts {
		wait.For(t, 30*time.Second, fmt.Sprintf("%s to take %s for %q", h.name, of, want), func() bool { return h.verdict(of) == want })
	}
}

// never fails the test if a host has used the verdict v since the last call.
func never(t *testing.T, hosts []*simulated, v balancer.Verdict) {
	t.Helper()
	for _, h := range hosts {
		if h.ever(v) {
			t.Errorf("host %s: verdict on a target = %q, want any other verdict", h.name, v)
		}
	}
}

// TestFleetOutvotes shares checks with a host that finds every target down, and a host that can't
// check. The other hosts must outvote the first host, and must run the checks of the second host.
// The history must contain each changed verdict once, with the voters.
func TestFleetOutvotes(t *testing.T) {
	w := newWorld(t, 10, quick())
	w.unhurried()
	for i := range 3 {
		w.join(fmt.Sprintf("host%d", i+1))
	}
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	w.mu.Lock()
	w.liars["host2"] = true
	w.mu.Unlock()
	for _, target := range w.targets {
		wait.For(t, 30*time.Second, "the host to say that all is down", func() bool {
			s, _ := w.hosts[0].checks.Standing(target)
			return s.Votes["host2"].Verdict == balancer.HealthDown
		})
	}
	never(t, w.hosts, balancer.HealthDown)
	w.turn(true, w.targets[3])
	everywhere(t, w.hosts, w.targets[3], balancer.HealthDown)
	w.turn(false, w.targets[3])
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	for _, h := range w.hosts {
		events, _ := h.events.Read(0, 0)
		var said []string
		for _, e := range events {
			if e.Endpoint == w.targets[3].Address() {
				said = append(said, e.Text)
			}
			if e.Text == "is down" && (!strings.Contains(e.Cause, " of 3 nodes: ") || !strings.Contains(e.Cause, "connection refused") || e.Was != "up" || e.Lasted <= 0) {
				t.Errorf("%s: event = %+v, want a cause that names 3 nodes", h.name, e)
			}
		}
		if got := strings.Join(said, ", "); got != "is up, is down, is up again" {
			t.Errorf("%s: events = %s, want up, down and up again", h.name, got)
		}
		s, ok := h.checks.Standing(w.targets[3])
		if !ok || s.Verdict != balancer.HealthUp || s.Alone || len(s.Checkers) != 3 || s.Votes["host2"].Verdict != balancer.HealthDown || s.Votes["host2"].Cause != "connection refused" {
			t.Errorf("%s: status = %+v, want up with 3 checkers and the vote of host2", h.name, s)
		}
	}
	w.mu.Lock()
	delete(w.liars, "host2")
	w.cannotRun["host4"] = true
	w.mu.Unlock()
	w.hosts[0].stop()
	w.join("host4")
	rest := w.hosts[1:]
	w.waitUntilStable(rest, balancer.HealthUp)
	w.turn(true, w.targets[5])
	everywhere(t, rest, w.targets[5], balancer.HealthDown)
	if s, _ := rest[0].checks.Standing(w.targets[5]); s.Votes["host4"].Verdict != balancer.HealthUnknown || s.Votes["host4"].Cause != "no such certificate file" {
		t.Errorf("vote of host4, which can't check = %+v, want unknown", s.Votes["host4"])
	}
}

// TestFleetOverTCP shares the checks of real servers, which start and stop, between three hosts.
// All hosts must use the right verdicts.
func TestFleetOverTCP(t *testing.T) {
	health := quick()
	health.Timeout = wait.Patience // a port without a listener refuses immediately
	w := newWorld(t, 3, health)
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
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	if err := listeners[w.targets[1]].Close(); err != nil {
		t.Fatal(err)
	}
	everywhere(t, w.hosts, w.targets[1], balancer.HealthDown)
	for _, h := range w.hosts {
		s, _ := h.checks.Standing(w.targets[1])
		for n, v := range s.Votes {
			if v.Verdict == balancer.HealthDown && !strings.HasPrefix(v.Cause, "connection refused") {
				t.Errorf("vote of %s = %+v, want a refused connection", n, v)
			}
		}
		if h.verdict(w.targets[0]) != balancer.HealthUp || h.verdict(w.targets[2]) != balancer.HealthUp {
			t.Errorf("verdicts of %s on the other targets = %q and %q, want up", h.name, h.verdict(w.targets[0]), h.verdict(w.targets[2]))
		}
	}
}

// behind places a relay between a host and etcd.
func behind(h *simulated, o *Options) {
	h.relay = etcdkit.NewRelay(h.t, strings.TrimPrefix(o.Config.Endpoints[0], "http://"))
	o.Config.Endpoints = []string{"http://" + h.relay.Addr()}
}

// TestFleetReplacesCheckers cuts a host off from etcd. When the host's lease expires, another host
// must replace it as a checker. Once the host is connected again, it must check again. Verdicts
// must not change on any host.
func TestFleetReplacesCheckers(t *testing.T) {
	w := newWorld(t, 20, quick())
	lost := w.join("host1", behind)
	for i := range 4 {
		w.join(fmt.Sprintf("host%d", i+2))
	}
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	never(t, w.hosts, balancer.HealthDown)
	lost.relay.Cut()
	w.waitUntilStable(w.hosts[1:], balancer.HealthUp)
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
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	never(t, w.hosts, balancer.HealthDown)
}

// TestFleetAfterCrash kills the only host that checks, and restarts it immediately while its old
// votes remain in etcd. Once the host is connected again, only its new votes may count, even though
// the old lease is still valid.
func TestFleetAfterCrash(t *testing.T) {
	w := newWorld(t, 20, quick())
	w.unhurried()
	w.lease = 20 * usual // this test must not depend on the lease, even on a busy machine
	var kept atomic.Int64
	keeps := func(_ *simulated, o *Options) { o.Keep = kept.Store }
	former := w.join("host1", behind, keeps)
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	former.relay.Cut() // so the host can't withdraw its votes
	former.stop()
	w.hosts = nil
	w.turn(true, w.targets...)
	before := kept.Load()
	w.join("host1", keeps, func(_ *simulated, o *Options) { o.Former = before })
	w.waitUntilStable(w.hosts, balancer.HealthDown)
	wait.For(t, 30*time.Second, "all to be under the new run's lease", func() bool {
		answer, err := w.client.Get(t.Context(), "/vipd/health/host1/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		return len(answer.Kvs) == len(w.targets)+1 &&
			!slices.ContainsFunc(answer.Kvs, func(kv *mvccpb.KeyValue) bool { return kv.Lease != kept.Load() })
	})
	if left, err := w.client.TimeToLive(t.Context(), clientv3.LeaseID(before)); err != nil || left.TTL <= 0 {
		t.Errorf("former lease = %+v, %v, want a lease that has not expired", left, err)
	}
}

// TestFleetWithoutEtcd stops etcd. Each host must check everything itself, starting with the
// fleet's verdicts. When etcd is available again with old votes, verdicts must not change.
func TestFleetWithoutEtcd(t *testing.T) {
	w := newWorld(t, 20, quick())
	for i := range 5 {
		w.join(fmt.Sprintf("host%d", i+1))
	}
	down := w.targets[4]
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	w.cluster.Kill()
	for _, h := range w.hosts {
		wait.For(t, 30*time.Second, h.name+" to check everything", func() bool { return h.checking() == len(w.targets) })
	}
	never(t, w.hosts, balancer.HealthDown)
	w.turn(true, down)
	everywhere(t, w.hosts, down, balancer.HealthDown)
	fell := time.Now()
	for _, h := range w.hosts { // from here on, no host may use the verdict "up"
		h.ever("")
	}
	w.cluster.Start()
	w.client = w.cluster.Client()
	for _, h := range w.hosts {
		wait.For(t, 60*time.Second, h.name+" to rely on the fleet again", func() bool {
			h.checks.mu.Lock()
			alone := h.checks.aloneLocked()
			h.checks.mu.Unlock()
			return !alone && h.checking() < len(w.targets) && len(h.eventsWith("shared again")) > 0
		})
		if s, _ := h.checks.Standing(down); s.Since.IsZero() || s.Since.After(fell) || s.Lasted <= 0 {
			t.Errorf("%s: target has been down since %s, after %s; want since before %s", h.name, s.Since, s.Lasted, fell)
		}
		// On a busy machine etcd may be late again.
		if back, away := h.eventsWith("shared again"), h.eventsWith("endpoints itself"); len(away) < len(back) || len(away) > len(back)+1 || away[0].Cause == "" || back[0].Lasted <= 0 {
			t.Errorf("%s: events = %+v, %+v, want one outage for each recovery", h.name, away, back)
		}
		h.seen.Lock()
		for _, all := range h.history {
			for _, target := range w.targets {
				if want := map[bool]balancer.Verdict{true: balancer.HealthDown, false: balancer.HealthUp}[target == down]; all.At(target) != want {
					t.Errorf("after etcd is back: verdict of %s on %s = %q, want no change", h.name, target, all.At(target))
				}
			}
		}
		h.seen.Unlock()
	}
	w.turn(false, down)
	w.waitUntilStable(w.hosts, balancer.HealthUp)
}

// TestFleetBeginsWithoutEtcd starts a host without etcd. The host must check everything itself.
func TestFleetBeginsWithoutEtcd(t *testing.T) {
	w := newWorld(t, 5, quick())
	w.turn(true, w.targets[0])
	w.cluster.Kill()
	h := w.join("host1")
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	everywhere(t, w.hosts, w.targets[1], balancer.HealthUp)
	if problems := h.checks.Problems(true); len(problems) == 0 || !strings.Contains(problems[0].Text, "checks endpoints itself: ") {
		t.Errorf("problems = %v, want a problem that the node checks endpoints itself", problems)
	}
	w.turn(false, w.targets[0])
	w.cluster.Start()
	w.client = w.cluster.Client()
	w.waitUntilStable(w.hosts, balancer.HealthUp)
	wait.For(t, 30*time.Second, "the problems to be over", func() bool { return len(h.checks.Problems(true)) == 0 })
}

// TestFleetRunsPrograms uses checks that run programs. The hosts that may run programs must check,
// and the other hosts must use their verdicts, even without etcd.
func TestFleetRunsPrograms(t *testing.T) {
	w := newWorld(t, 6, quick())
	for target, s := range w.wanted.All() {
		program := *s.Health
		program.Type, program.Command = balancer.ExecHealth, []string{"/bin/true"}
		s.Health = &program
		w.wanted = w.wanted.Set(target, s)
	}
	may := func(h *simulated, _ *Options) { h.exec = true }
	w.turn(true, w.targets[0])
	for i := range 2 {
		w.join(fmt.Sprintf("may%d", i+1), may)
		w.join(fmt.Sprintf("not%d", i+1))
	}
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	everywhere(t, w.hosts, w.targets[1], balancer.HealthUp)
	wait.For(t, 60*time.Second, "the two hosts that may run programs to be the checkers", func() bool { // one of the two hosts decides alone while the other host starts
		s, _ := w.hosts[1].checks.Standing(w.targets[1])
		return slices.Equal(slices.Sorted(slices.Values(s.Checkers)), []balancer.NodeName{"may1", "may2"})
	})
	w.cluster.Kill()
	for _, h := range w.hosts {
		want := map[bool]int{true: len(w.targets)}[h.exec]
		wait.For(t, 30*time.Second, fmt.Sprintf("%s to be alone, and to check %d targets", h.name, want), func() bool {
			s, _ := h.checks.Standing(w.targets[1])
			return s.Alone && h.checking() == want
		})
	}
	everywhere(t, w.hosts, w.targets[0], balancer.HealthDown)
	everywhere(t, w.hosts, w.targets[1], balancer.HealthUp)
}

// TestFleetOnlyWhereAsked removes the last service that needs the fleet's checks. The host must
// delete its keys from etcd, and must join again when a service needs the fleet's checks.
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
	w.waitUntilStable(w.hosts, balancer.HealthUp)
}
