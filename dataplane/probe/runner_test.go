package probe_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/dataplane/probe"
	"vipd/test/wait"
)

// world simulates the network that a runner checks. It uses synctest's clock: when all other
// goroutines wait, each time.Sleep in this file advances the clock without a real delay.
type world struct {
	t *testing.T

	mu      sync.Mutex
	broken  map[netip.AddrPort]bool
	takes   map[netip.AddrPort]time.Duration // how long checks of each address run
	under   map[netip.AddrPort]int           // number of running checks, by address
	flying  int
	most    int                            // the highest number of concurrent checks so far
	begins  map[netip.AddrPort][]time.Time // start times of the checks, by address
	reports [][]probe.Transition
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, broken: map[netip.AddrPort]bool{}, takes: map[netip.AddrPort]time.Duration{}, under: map[netip.AddrPort]int{},
		begins: map[netip.AddrPort][]time.Time{},
	}
}

func (w *world) check(ctx context.Context, _ *probe.Probe, at netip.AddrPort) health.Result {
	w.mu.Lock()
	began := time.Now()
	w.begins[at] = append(w.begins[at], began)
	w.under[at]++
	w.flying++
	w.most = max(w.most, w.flying)
	if w.under[at] > 1 {
		w.t.Errorf("concurrent checks of %[2]s = %[1]d, want 1", w.under[at], at)
	}
	takes := w.takes[at]
	w.mu.Unlock()
	if takes > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(takes):
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.under[at]--
	w.flying--
	r := health.Result{Outcome: health.Passed, Began: began, Took: time.Since(began), Text: "fine"}
	if w.broken[at] {
		r.Outcome, r.Text = health.Failed, "broken"
	}
	return r
}

func (w *world) report(changes []probe.Transition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = append(w.reports, changes)
}

// reported returns the reports since its last call.
func (w *world) reported() [][]probe.Transition {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.reports
	w.reports = nil
	return all
}

// checked returns when each check of an address started.
func (w *world) checked(at netip.AddrPort) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.begins[at])
}

// set makes the checks of the first n targets fail if broken is true, and pass otherwise. takes is
// how long later checks run.
func (w *world) set(n int, broken bool, takes time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		w.broken[at(i)], w.takes[at(i)] = broken, takes
	}
}

// start starts a runner. The runner stops when the returned function is called or the test ends.
func (w *world) start(o probe.Options) (*probe.Runner, func()) {
	o.Report, o.Check = w.report, w.check
	r := probe.NewRunner(o)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	return r, func() { cancel(); <-ended }
}

// at returns the address and port at which target i is checked.
func at(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
}

func target(service string, i int) balancer.Target {
	return balancer.Target{Service: balancer.Name(service), Addr: at(i).Addr(), Port: 80}
}

// equalTargets returns n targets of one service, which all have the same check.
func equalTargets(n int, h *balancer.Health) snap.Map[balancer.Target, health.Subject] {
	var m snap.Map[balancer.Target, health.Subject]
	for i := range n {
		m = m.Set(target("web", i), health.Subject{At: at(i), Proto: balancer.TCP, Health: h})
	}
	return m
}

func usual(change func(*balancer.Health)) *balancer.Health {
	return define(balancer.TCPHealth, func(h *balancer.Health) {
		h.Interval, h.FastInterval, h.Timeout = 2*time.Second, 500*time.Millisecond, time.Second
		if change != nil {
			change(h)
		}
	})
}

// TestHangingChecksDelayNoOther makes a thousand checks hang until their timeout. The only healthy
// target must still be checked on time.
func TestHangingChecksDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := 1; i <= 1000; i++ {
			w.takes[at(i)], w.broken[at(i)] = time.Second, true
		}
		r, stop := w.start(probe.Options{})
		r.Set(equalTargets(1001, usual(nil)))
		time.Sleep(time.Minute)
		stop()
		begins := w.begins[at(0)]
		for i, b := range begins[1:] {
			if gap := b.Sub(begins[i]); gap > 2*time.Second+5*time.Millisecond || gap < 1800*time.Millisecond {
				t.Errorf("time between check %d and the previous check = %s, want 1.8s to 2.005s", i+1, gap)
			}
		}
		if len(begins) < 29 {
			t.Errorf("checks in a minute = %d, want at least 29", len(begins))
		}
		if r.Verdicts().At(target("web", 0)) != balancer.HealthUp || r.Verdicts().At(target("web", 1)) != balancer.HealthDown {
			t.Errorf("verdicts = %v, want up for target 0 and down for target 1", r.Verdicts())
		}
	})
}

// TestConcurrencyLimits uses more targets than can be checked concurrently. The runner must respect
// the separate limits for network checks and programs, and must check every target.
func TestConcurrencyLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, programs := newWorld(t), newWorld(t)
		for i := range 200 {
			network.takes[at(i)] = 900 * time.Millisecond
			programs.takes[netip.AddrPortFrom(at(i).Addr(), 81)] = 900 * time.Millisecond
		}
		r := probe.NewRunner(probe.Options{
			Report: network.report, InFlight: 50, Programs: 3,
			Check: func(ctx context.Context, p *probe.Probe, where netip.AddrPort) health.Result {
				if where.Port() == 80 {
					return network.check(ctx, p, where)
				}
				return programs.check(ctx, p, where)
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { r.Run(ctx); close(ended) }()
		m := equalTargets(200, usual(nil))
		h := usual(func(h *balancer.Health) { h.Type, h.Command = balancer.ExecHealth, []string{"/bin/true"} })
		for i := range 20 {
			m = m.Set(target("exec", i), health.Subject{At: netip.AddrPortFrom(at(i).Addr(), 81), Proto: balancer.TCP, Health: h})
		}
		r.Set(m)
		time.Sleep(time.Minute)
		cancel()
		<-ended
		if network.most != 50 || programs.most != 3 {
			t.Errorf("concurrent network checks = %d, concurrent programs = %d; want 50, 3", network.most, programs.most)
		}
		if len(network.begins) != 200 || len(programs.begins) != 20 {
			t.Errorf("targets checked over the network = %d, and by programs = %d; want 200, 20", len(network.begins), len(programs.begins))
		}
		for where, begins := range network.begins {
			if len(begins) < 14 {
				t.Errorf("checks of %s in a minute = %d, want about 16", where, len(begins))
			}
		}
	})
}

// TestLatePrograms runs a network check, and programs that take 0.4 s each, up to 16 at the same
// time. If the interval is too short for all programs, the runner must report that programs are
// late. The reported delay must show which interval would suffice.
func TestLatePrograms(t *testing.T) {
	for _, c := range []struct {
		programs int
		interval time.Duration
		late     bool
	}{
		{30, time.Second, false},
		{200, time.Second, true},
		{200, 6 * time.Second, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			m := equalTargets(c.programs, usual(func(h *balancer.Health) {
				h.Type, h.Command, h.Interval, h.FastInterval = balancer.ExecHealth, []string{"/bin/true"}, c.interval, c.interval/4
			}))
			for i := range c.programs {
				w.takes[at(i)] = 400 * time.Millisecond
			}
			r, stop := w.start(probe.Options{Programs: 16})
			defer stop()
			r.Set(m.Set(target("net", 300), health.Subject{At: at(300), Proto: balancer.TCP, Health: usual(nil)}))
			time.Sleep(2 * time.Minute)
			late := r.Late()
			if !c.late && len(late) > 0 {
				t.Errorf("%d programs every %s: Late() = %+v, want none", c.programs, c.interval, late)
			}
			if c.late && (len(late) != 1 || !late[0].Programs || late[0].Limit != 16 || late[0].Interval != c.interval ||
				late[0].By < 3*time.Second || late[0].By > 5*time.Second) {
				t.Errorf("%d programs every %s: Late() = %+v, want an entry for programs that are late by about 4s", c.programs, c.interval, late)
			}
		})
	}
}

// TestSharedChecks gives several services the same check of one address. They must share its
// results and reports, even if they use the results differently.
func TestSharedChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, stop := w.start(probe.Options{})
		defer stop()
		var m snap.Map[balancer.Target, health.Subject]
		for i, name := range []string{"a", "b", "c"} {
			h := usual(func(h *balancer.Health) { h.PanicThreshold, h.OnFailure = i*10, balancer.CutOnFailure })
			m = m.Set(target(name, 1), health.Subject{At: at(1), Proto: balancer.TCP, Health: h})
		}
		r.Set(m)
		time.Sleep(time.Minute)
		if n := len(w.checked(at(1))); n < 29 || n > 34 {
			t.Errorf("checks in a minute = %d, want about 31", n)
		}
		if all := w.reported(); len(all) != 1 || len(all[0]) != 1 || fmt.Sprint(all[0][0].Targets) != "[a/10.0.0.1:80 b/10.0.0.1:80 c/10.0.0.1:80]" {
			t.Errorf("reports = %+v, want one change of the services a, b and c", all)
		}
		// One service is removed, and another is added. The check must continue, and the new
		// service must have its verdict immediately.
		before := len(w.checked(at(1)))
		m = m.Delete(target("a", 1)).Set(target("d", 1), m.At(target("b", 1)))
		verdicts := r.Set(m)
		if verdicts.At(target("d", 1)) != balancer.HealthUp || verdicts.Has(target("a", 1)) || verdicts.Len() != 3 {
			t.Errorf("number of verdicts = %d, verdict of service d = %q; want 3, up", verdicts.Len(), verdicts.At(target("d", 1)))
		}
		time.Sleep(10 * time.Second)
		if n := len(w.checked(at(1))) - before; n < 4 || n > 6 {
			t.Errorf("checks in ten seconds = %d, want about 5", n)
		}
		r.Set(snap.Map[balancer.Target, health.Subject]{})
		before = len(w.checked(at(1)))
		time.Sleep(time.Minute)
		if len(w.checked(at(1))) != before {
			t.Errorf("checks after all targets were removed = %d, want 0", len(w.checked(at(1)))-before)
		}
	})
}

// TestSimultaneousChangesShareReport breaks 1,000 targets, and hints at each of them. A single
// report must contain all changes.
func TestSimultaneousChangesShareReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, stop := w.start(probe.Options{})
		defer stop()
		m := equalTargets(1000, usual(func(h *balancer.Health) { h.Fall, h.Interval = 1, time.Minute }))
		r.Set(m)
		time.Sleep(10 * time.Second)
		w.reported()
		w.set(1000, true, 30*time.Millisecond)
		r.Hint(slices.Collect(m.Keys())...)
		time.Sleep(time.Second)
		reports := w.reported()
		if len(reports) != 1 || len(reports[0]) != 1000 {
			t.Fatalf("reports = %d, want 1 with 1000 changes", len(reports))
		}
		for _, c := range reports[0] {
			if c.Before != balancer.HealthUp || c.State.Verdict != balancer.HealthDown || c.For < 8*time.Second || c.State.Last.Text != "broken" {
				t.Fatalf("change = %+v, want down after at least 8s of up", c)
			}
		}
	})
}

// TestDetectionTime breaks a thousand targets at the same time. Each must be reported as down
// within interval x fall + timeout.
func TestDetectionTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, stop := w.start(probe.Options{})
		defer stop()
		r.Set(equalTargets(1000, usual(nil)))
		time.Sleep(10 * time.Second)
		w.reported()
		w.set(1000, true, time.Second) // each check hangs until its timeout
		time.Sleep(7*time.Second + 60*time.Millisecond)
		reports, changed := w.reported(), 0
		for _, report := range reports {
			changed += len(report)
		}
		if changed != 1000 || len(reports) > 50 {
			t.Errorf("after 7 s: changes = %d, reports = %d; want 1000, at most 50", changed, len(reports))
		}
	})
}

// TestReloadKeepsState sets checks again while a target fails. If the new check is equal, the
// target must retain its state, and otherwise its verdict. A removed target must have no status.
func TestReloadKeepsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, stop := w.start(probe.Options{})
		defer stop()
		h := usual(func(h *balancer.Health) { h.Fall = 5 })
		r.Set(equalTargets(1, h))
		time.Sleep(5 * time.Second)
		w.set(1, true, 0)
		before, _ := r.Status(target("web", 0))
		for before.State.Streak < 2 {
			time.Sleep(100 * time.Millisecond)
			before, _ = r.Status(target("web", 0))
		}
		again := *h // an equal copy, as a reload creates
		r.Set(equalTargets(2, &again))
		after, _ := r.Status(target("web", 0))
		if after.State != before.State {
			t.Errorf("state after Set with an equal check = %+v, want %+v", after.State, before.State)
		}
		changed := *h
		changed.Send = "x"
		r.Set(equalTargets(2, &changed))
		after, _ = r.Status(target("web", 0))
		if after.State.Verdict != balancer.HealthUp || after.State.Streak != before.State.Streak || !after.State.Since.Equal(before.State.Since) {
			t.Errorf("state after Set = %+v, want %+v", after.State, before.State)
		}
		if r.Verdicts().At(target("web", 0)) != balancer.HealthUp {
			t.Errorf("changed check: verdict = %q, want up", r.Verdicts().At(target("web", 0)))
		}
		time.Sleep(3 * time.Second)
		if r.Verdicts().At(target("web", 0)) != balancer.HealthDown {
			t.Errorf("after failures of the changed check: verdict = %q, want down", r.Verdicts().At(target("web", 0)))
		}
		if _, there := r.Status(target("nobody", 0)); there {
			t.Error("Status() of a missing target = true, want false")
		}
	})
}

// TestRestartKeepsVerdicts passes a runner's state to the next runner. The next runner must use the
// verdicts for a minute, and only for the same service.
func TestRestartKeepsVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.broken[at(1)] = true
		r, stop := w.start(probe.Options{})
		m := equalTargets(3, usual(nil))
		r.Set(m)
		time.Sleep(5 * time.Second)
		stop()
		kept := r.Keep()
		if len(kept) != 3 {
			t.Fatalf("targets in the passed state = %d, want 3", len(kept))
		}
		want := r.Verdicts()
		time.Sleep(20 * time.Second)
		// The third target now has another check. The target's first verdict must be the old
		// verdict of its address.
		m = m.Set(target("web", 2), health.Subject{At: at(2), Proto: balancer.TCP, Health: usual(func(h *balancer.Health) { h.Send = "x" })})
		next := probe.NewRunner(probe.Options{Kept: kept, Report: w.report, Check: w.check})
		for target, c := range snap.Diff(want, next.Set(m)) {
			t.Errorf("verdict of %s = %q, want %q", target, c.New, c.Old)
		}
		// A check of another service at the same address must not use the old verdict.
		stranger := target("other", 1)
		others := m.Set(stranger, health.Subject{At: at(1), Proto: balancer.TCP, Health: usual(func(h *balancer.Health) { h.Send = "y" })})
		if got := probe.NewRunner(probe.Options{Kept: kept, Report: w.report}).Set(others).At(stranger); got != balancer.HealthUnknown {
			t.Errorf("first verdict of another service's check = %q, want unknown", got)
		}
		time.Sleep(time.Minute)
		if late := probe.NewRunner(probe.Options{Kept: kept, Report: w.report}).Set(m); late.Len() != 0 {
			t.Errorf("runner that starts more than a minute later: verdicts = %d, want 0", late.Len())
		}
	})
}

// TestReloadKeepsVerdicts renames a service, or changes its check or port, while its target is
// down. The target must stay down, whether the new name sorts before or after the old name.
func TestReloadKeepsVerdicts(t *testing.T) {
	subject := func(i int, h *balancer.Health) health.Subject {
		return health.Subject{At: at(i), Proto: balancer.TCP, Health: h}
	}
	h := usual(nil)
	for name, c := range map[string]struct {
		target balancer.Target
		wants  health.Subject
	}{
		"earlier name":      {target("app", 0), subject(0, h)},
		"later name":        {target("web2", 0), subject(0, h)},
		"earlier target":    {balancer.Target{Service: "web", Addr: at(0).Addr(), Port: 1}, subject(0, h)},
		"later target":      {balancer.Target{Service: "web", Addr: at(0).Addr(), Port: 65535}, subject(0, h)},
		"other health.port": {target("web", 0), health.Subject{At: netip.AddrPortFrom(at(0).Addr(), 9), Proto: balancer.TCP, Health: h}},
		"other check":       {target("web", 0), subject(0, usual(func(h *balancer.Health) { h.Send = "x" }))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.broken[at(0)] = true
				r, stop := w.start(probe.Options{})
				defer stop()
				r.Set(equalTargets(1, h))
				time.Sleep(5 * time.Second)
				var next snap.Map[balancer.Target, health.Subject]
				if got := r.Set(next.Set(c.target, c.wants)); got.Len() != 1 || got.At(c.target) != balancer.HealthDown {
					t.Errorf("verdicts after the reload = %v, want down", got)
				}
				if got := r.Set(next); got.Len() != 0 {
					t.Errorf("verdicts after all targets were removed = %v, want none", got)
				}
			})
		})
	}
}

// TestAssumedVerdicts tells a runner which verdicts other nodes have reported. A new target must
// start with this verdict, and must need as many results as usual to change it. The verdicts of
// targets that are already being checked must not change.
func TestAssumedVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, stop := w.start(probe.Options{})
		defer stop()
		w.set(2, true, 0)
		h := usual(nil)
		only := equalTargets(1, h)
		r.Set(only)
		time.Sleep(3 * time.Second)
		both := equalTargets(2, h)
		var known snap.Map[balancer.Target, balancer.Verdict]
		for target := range both.Keys() {
			known = known.Set(target, balancer.HealthUp)
		}
		r.Assume(known)
		all := r.Set(both)
		for target := range both.Keys() {
			want := map[bool]balancer.Verdict{true: balancer.HealthDown, false: balancer.HealthUp}[only.Has(target)]
			if all.At(target) != want {
				t.Errorf("first verdict of %s = %q, want %q", target, all.At(target), want)
			}
		}
		began := time.Now()
		w.reported()
		time.Sleep(time.Minute)
		changes := slices.Concat(w.reported()...)
		if len(changes) != 1 || changes[0].Before != balancer.HealthUp || changes[0].State.Verdict != balancer.HealthDown {
			t.Fatalf("changes = %+v, want one change from up to down", changes)
		}
		if after := changes[0].State.Since.Sub(began); after < time.Duration(h.Fall-1)*h.FastInterval*9/10 || after > h.Interval+time.Duration(h.Fall-1)*h.FastInterval {
			t.Errorf("change after %s, want the time that %d results need", after, h.Fall)
		}
	})
}

// TestNow runs a check that a user requests, outside the schedule. The result must not affect the
// verdict.
func TestNow(t *testing.T) {
	quiet(t)
	r := probe.NewRunner(probe.Options{Report: func([]probe.Transition) {}})
	where := serve(t, answerWith(ok))
	name := balancer.Target{Service: "web", Addr: where.Addr(), Port: 80}
	var m snap.Map[balancer.Target, health.Subject]
	r.Set(m.Set(name, health.Subject{At: where, Proto: balancer.TCP, Health: define(balancer.HTTPHealth, func(h *balancer.Health) { h.Timeout = wait.Patience })}))
	all, err := r.Now(t.Context(), name)
	if err != nil || len(all) != 1 || all[0].Outcome != health.Passed || all[0].Transcript == "" {
		t.Errorf("Now() = %+v, %v; want a passed check with its transcript", all, err)
	}
	if r.Verdicts().Len() != 0 {
		t.Errorf("verdicts after Now() = %d, want 0", r.Verdicts().Len())
	}
	if _, err := r.Now(t.Context(), balancer.Target{}); err == nil {
		t.Error("missing target: error of Now() = nil, want an error")
	}
}

// TestManualChecksLimited requests 100 checks at the same time, and cancels one while it waits. All
// others must run, at most four at the same time.
func TestManualChecksLimited(t *testing.T) {
	quiet(t)
	r := probe.NewRunner(probe.Options{Report: func([]probe.Transition) {}})
	var mu sync.Mutex
	under, most := 0, 0
	open := make(chan struct{})
	where := serve(t, func(c net.Conn) {
		mu.Lock()
		under++
		most = max(most, under)
		mu.Unlock()
		<-open
		mu.Lock()
		under--
		mu.Unlock()
		_, _ = io.WriteString(c, "pong")
	})
	subject := health.Subject{At: where, Proto: balancer.TCP, Health: define(balancer.TCPHealth, func(h *balancer.Health) { h.Expect, h.Timeout = "pong", time.Minute })}
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(func() {
			if all, err := r.Exchange(t.Context(), subject); err != nil || len(all) != 1 || all[0].Outcome != health.Passed {
				t.Errorf("Exchange() = %+v, %v; want a passed check", all, err)
			}
		})
	}
	wait.For(t, 10*time.Second, "the first four checks", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return under == 4
	})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Exchange(gone, subject); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled request: error = %v, want context.Canceled", err)
	}
	close(open)
	asking.Wait()
	if most > 4 {
		t.Errorf("concurrent checks = %d, want at most 4", most)
	}
}

// TestRandomHistories changes targets and their health at random, and then waits for a minute. Each
// target's verdict must then match its health.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { history(t, seed) })
	}
}

func history(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	w := newWorld(t)
	r, stop := w.start(probe.Options{InFlight: 1 + rng.IntN(12), Seed: seed})
	defer stop() // deferred, because the world's lock must be released before
	checks := []*balancer.Health{
		usual(nil), usual(func(h *balancer.Health) { h.Fall = 1 }), usual(func(h *balancer.Health) { h.Interval, h.Rise = 4*time.Second, 1 }),
	}
	var m snap.Map[balancer.Target, health.Subject]
	for range 40 {
		w.mu.Lock()
		where := at(rng.IntN(8))
		w.broken[where] = rng.IntN(2) == 0
		w.takes[where] = time.Duration(rng.IntN(4)) * 300 * time.Millisecond
		w.mu.Unlock()
		for range rng.IntN(4) {
			name := target([]string{"a", "b", "c"}[rng.IntN(3)], rng.IntN(8))
			if rng.IntN(3) == 0 {
				m = m.Delete(name)
				continue
			}
			// All checks of an address have the same definition. Otherwise, checks with two
			// definitions could run at the same time, which the world does not permit.
			i := int(name.Addr.As4()[3])
			m = m.Set(name, health.Subject{At: at(i), Proto: balancer.TCP, Health: checks[i%len(checks)]})
		}
		if rng.IntN(3) == 0 {
			r.Hint(slices.Collect(m.Keys())...)
		}
		for name := range r.Set(m).Keys() {
			if !m.Has(name) {
				t.Fatalf("seed %d: removed target %s has a verdict, want none", seed, name)
			}
		}
		time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
	}
	time.Sleep(time.Minute)
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range m.Keys() {
		want := balancer.HealthUp
		if w.broken[m.At(name).At] {
			want = balancer.HealthDown
		}
		status, there := r.Status(name)
		if got := r.Verdicts().At(name); got != want || !there || status.State.Verdict != want {
			t.Fatalf("seed %d: verdict of %s = %q, want %q; its status is %+v", seed, name, got, want, status)
		}
	}
	for _, report := range w.reports {
		for _, c := range report {
			if c.Before == c.State.Verdict || len(c.Targets) == 0 {
				t.Fatalf("seed %d: change = %+v, want a different verdict and at least one target", seed, c)
			}
		}
	}
	if w.most > 12 {
		t.Fatalf("seed %d: concurrent checks = %d, want at most 12", seed, w.most)
	}
}
