package probe_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/dataplane/probe"
)

// several returns the subject of target 0, with two checks: at port 80 and at port 81 of the
// target's address.
func several(need balancer.HealthNeed) health.Subject {
	first := usual(func(h *balancer.Health) { h.Fall, h.Rise, h.Need = 1, 1, need })
	second := usual(func(h *balancer.Health) {
		h.Type, h.Interval, h.FastInterval, h.Fall, h.Rise, h.Need = balancer.HTTPHealth, 10*time.Second, 5*time.Second, 3, 2, need
	})
	next := health.Subject{At: other(), Proto: balancer.TCP, Health: second}
	return health.Subject{At: at(0), Proto: balancer.TCP, Health: first, Next: &next}
}

func other() netip.AddrPort { return netip.AddrPortFrom(at(0).Addr(), 81) }

// TestSeveralChecks breaks and repairs the checks of a target that has two checks. Each check has
// its own interval and fall. The verdict must follow the setting need, and must change only once
// when the checks change. The status must name the check that caused the verdict.
func TestSeveralChecks(t *testing.T) {
	for _, c := range []struct {
		need           balancer.HealthNeed
		first, second  bool // broken
		verdict        balancer.Verdict
		cause          string
		takesAtLeast   time.Duration
		changesVerdict bool
	}{
		{"all", true, false, balancer.HealthDown, "check 1 of 2 (tcp): ", 0, true},
		{"all", false, true, balancer.HealthDown, "check 2 of 2 (http): ", 8 * time.Second, true},
		{"any", true, false, balancer.HealthUp, "", 0, false},
		{"any", true, true, balancer.HealthDown, "check 2 of 2 (http): ", 8 * time.Second, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			r, stop := w.start(probe.Options{})
			defer stop()
			name := target("web", 0)
			var m snap.Map[balancer.Target, health.Subject]
			r.Set(m.Set(name, several(c.need)))
			time.Sleep(30 * time.Second)
			if got := r.Verdicts().At(name); got != balancer.HealthUp {
				t.Fatalf("need %s: first verdict = %q, want up", c.need, got)
			}
			before := time.Now()
			w.mu.Lock()
			w.broken[at(0)], w.broken[other()] = c.first, c.second
			w.mu.Unlock()
			time.Sleep(2 * time.Minute)
			status, _ := r.Status(name)
			if status.State.Verdict != c.verdict || r.Verdicts().At(name) != c.verdict || len(status.Checks) != 2 || !strings.HasPrefix(status.State.Cause, c.cause) {
				t.Errorf("%+v: status = %+v, published = %q; want the expected verdict in both, its cause, and two checks", c, status, r.Verdicts().At(name))
			}
			if took := status.State.Since.Sub(before); c.changesVerdict && took < c.takesAtLeast {
				t.Errorf("%+v: change after %s, want at least the time that the checks need", c, took)
			}
			w.mu.Lock()
			w.broken[at(0)], w.broken[other()] = false, false
			w.mu.Unlock()
			time.Sleep(2 * time.Minute)
			if got := r.Verdicts().At(name); got != balancer.HealthUp {
				t.Errorf("%+v: verdict after the repair = %q, want up", c, got)
			}
		})
	}
}

// TestListReloadKeepsVerdict adds a check to a target, and removes it again. The verdict must not
// change until results contradict it, and the removed check must no longer run.
func TestListReloadKeepsVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, stop := w.start(probe.Options{})
		defer stop()
		name := target("web", 0)
		var m snap.Map[balancer.Target, health.Subject]
		both := several("all")
		one := both
		one.Next = nil
		r.Set(m.Set(name, one))
		time.Sleep(10 * time.Second)
		w.mu.Lock()
		w.broken[other()] = true
		w.mu.Unlock()
		if got := r.Set(m.Set(name, both)).At(name); got != balancer.HealthUp {
			t.Errorf("after a check was added: verdict = %q, want up", got)
		}
		time.Sleep(time.Minute)
		if got := r.Verdicts().At(name); got != balancer.HealthDown {
			t.Errorf("after the new check failed: verdict = %q, want down", got)
		}
		if got := r.Set(m.Set(name, one)).At(name); got != balancer.HealthUp {
			t.Errorf("after the failed check was removed: verdict = %q, want up", got)
		}
		w.mu.Lock()
		begun := len(w.begins[other()])
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.mu.Lock()
		later := len(w.begins[other()]) - begun
		w.mu.Unlock()
		if later != 0 {
			t.Errorf("runs of the removed check = %d, want 0", later)
		}
		if got := r.Set(m).Len(); got != 0 {
			t.Errorf("verdicts after all targets were removed = %d, want 0", got)
		}
	})
}

// TestListReloadReportsVerdict removes or adds a check of a target, so the verdict changes
// immediately. The runner must report the change, and how long the old verdict lasted.
func TestListReloadReportsVerdict(t *testing.T) {
	either, one := several("any"), several("all")
	one.Next = nil
	for name, next := range map[string]health.Subject{"the failing check is removed": one, "one check is enough": either} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			r, stop := w.start(probe.Options{})
			defer stop()
			w.broken[other()] = true
			web := target("web", 0)
			var m snap.Map[balancer.Target, health.Subject]
			r.Set(m.Set(web, several("all")))
			time.Sleep(time.Minute)
			w.reported()
			down, _ := r.Status(web)
			changed := time.Now()
			r.Set(m.Set(web, next))
			time.Sleep(time.Second)
			all := w.reported()
			if len(all) != 1 || len(all[0]) != 1 {
				t.Fatalf("%s: reports = %+v, want one change", name, all)
			}
			c := all[0][0]
			if len(c.Targets) != 1 || c.Targets[0] != web || c.Before != balancer.HealthDown || c.State.Verdict != balancer.HealthUp ||
				!c.State.Since.Equal(changed) || c.For != changed.Sub(down.State.Since) {
				t.Errorf("%s: change = %+v, want up after %s", name, c, changed.Sub(down.State.Since))
			}
		})
	}
}

// TestListExchange requests the checks of a target that has two. Each must run once.
func TestListExchange(t *testing.T) {
	quiet(t)
	r := probe.NewRunner(probe.Options{Report: func([]probe.Transition) {}})
	h := define(balancer.TCPHealth, func(h *balancer.Health) { h.Expect = "pong" })
	next := health.Subject{At: closedPort(t), Proto: balancer.TCP, Health: h}
	all, err := r.Exchange(t.Context(), health.Subject{At: serve(t, answerWith("pong")), Proto: balancer.TCP, Health: define(balancer.TCPHealth, nil), Next: &next})
	if err != nil || len(all) != 2 || all[0].Outcome != health.Passed || all[1].Outcome != health.Failed || all[1].At != next.At {
		t.Errorf("Exchange() = %+v, %v; want a passed and a failed check", all, err)
	}
}
