package probe_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/dataplane/probe"
	"vipd/test/wait"
)

// All tests in this file use synctest's clock: each time.Sleep advances the clock without a real
// delay.

// targetsAt returns n targets of one service, distributed over a number of addresses. all holds the
// address and port at which each target is checked.
func targetsAt(n, addresses int, h *balancer.Health) (m snap.Map[balancer.Target, health.Subject], all []netip.AddrPort) {
	for i := range n {
		where := netip.AddrPortFrom(at(i%addresses).Addr(), uint16(1000+i/addresses))
		m = m.Set(balancer.Target{Service: "web", Addr: where.Addr(), Port: where.Port()}, health.Subject{At: where, Proto: balancer.TCP, Health: h})
		all = append(all, where)
	}
	return m, all
}

// become makes the checks of targets fail if broken is true, and pass otherwise. takes is how long
// later checks run.
func (w *world) become(all []netip.AddrPort, broken bool, takes time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range all {
		w.broken[a], w.takes[a] = broken, takes
	}
}

// until waits until n targets have changed or the limit has passed. It returns the number of
// reports and how long it waited.
func (w *world) until(n int, limit time.Duration) (reports int, took time.Duration) {
	w.t.Helper()
	began := time.Now()
	for n > 0 && time.Since(began) < limit {
		time.Sleep(time.Millisecond)
		for _, r := range w.reported() {
			n -= len(r)
			reports++
		}
	}
	if n != 0 {
		w.t.Errorf("changes not reported after %v = %d, want 0", limit, n)
	}
	return reports, time.Since(began)
}

// TestSimultaneousChangesReportedTogether breaks and repairs a thousand targets at the same time,
// with and without shared addresses. All changes must arrive in only a few reports, and sooner than
// periodic checks alone would find them.
func TestSimultaneousChangesReportedTogether(t *testing.T) {
	for i, c := range []struct {
		takes time.Duration
		most  int           // maximum number of reports
		down  time.Duration // maximum time until the last report
	}{
		{0, 5, 2 * time.Second},
		{300 * time.Millisecond, 5, 2700 * time.Millisecond},
		{time.Second, 8, 5300 * time.Millisecond},
	} {
		for seed, addresses := range []int{1, 10, 1000} {
			if seed != i && !wait.Soaking() {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				r, stop := w.start(probe.Options{Seed: uint64(seed)})
				defer stop()
				m, all := targetsAt(1000, addresses, usual(nil))
				r.Set(m)
				time.Sleep(10*time.Second + time.Duration(seed)*700*time.Millisecond)
				w.reported()
				for _, broken := range []bool{true, false} {
					takes, most, limit := c.takes, c.most, c.down
					if !broken {
						takes, most, limit = 0, 6, 2*time.Second // a verdict needs two checks, and some targets are finished before others start
					}
					w.become(all, broken, takes)
					if reports, took := w.until(1000, 20*time.Second); reports > most || took > limit {
						t.Errorf("%d addresses, %v, seed %d, broken %v: reports = %d, time = %v; want at most %d, %v",
							addresses, c.takes, seed, broken, reports, took, most, limit)
					}
					time.Sleep(10 * time.Second) // meanwhile, the checks become evenly spread over the interval again
					w.wantSpread(all)
				}
			})
		}
	}
}

// wantSpread checks that the targets' last checks are spread over the interval. It must be called
// ten seconds after all targets have changed at the same time.
func (w *world) wantSpread(all []netip.AddrPort) {
	w.t.Helper()
	slots := map[time.Duration]int{}
	for _, a := range all {
		checks := w.checked(a)
		slots[time.Since(checks[len(checks)-1])/(100*time.Millisecond)]++
	}
	for slot, n := range slots {
		if n > len(all)/5 {
			w.t.Errorf("targets checked %[3]d00 ms ago = %[1]d of %[2]d, want at most a fifth", n, len(all), slot)
		}
	}
}

// TestFlappersDisturbFew makes some targets, the flappers, fail every second check. The other
// targets' verdicts must not change, and none of these targets may be checked more than twice in an
// interval. A single flapper among many targets must increase the number of checks by less than a
// fifth.
func TestFlappersDisturbFew(t *testing.T) {
	for _, c := range []struct {
		targets, flappers int
		most              float64 // maximum ratio between the number of checks with and without flappers
	}{{1000, 1, 1.2}, {50, 10, 2}} {
		synctest.Test(t, func(t *testing.T) {
			m, all := targetsAt(c.targets, 1, usual(nil))
			w := newWorld(t)
			var flaps [10]int // number of checks of each flapper; a flapper's checks never overlap
			r := probe.NewRunner(probe.Options{Report: w.report, Check: func(ctx context.Context, p *probe.Probe, where netip.AddrPort) health.Result {
				res := w.check(ctx, p, where)
				if i := slices.Index(all[:c.flappers], where); i >= 0 {
					if flaps[i]++; flaps[i]%2 == 0 {
						res.Outcome = health.Failed
					}
				}
				return res
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			r.Set(m)
			time.AfterFunc(time.Minute, func() { w.reported() })
			r.Run(ctx)
			if got := w.reported(); len(got) > 0 {
				t.Errorf("reports = %d, want 0", len(got))
			}
			total := 0
			for _, a := range all[c.flappers:] {
				checks := w.checked(a)
				total += len(checks)
				for i := range checks[4:] {
					if took := checks[i+4].Sub(checks[i]); took < 2900*time.Millisecond {
						t.Fatalf("%d flappers: five checks of %s took %v, want at least 2.9s", c.flappers, a, took)
					}
				}
			}
			alone := 180 / 1.9 * float64(c.targets-c.flappers)
			if flaps[0] < 100 || float64(total) > alone*c.most {
				t.Errorf("%d flappers: checks of the other targets = %d, want at most %.1f times %.0f", c.flappers, total, c.most, alone)
			}
		})
	}
}

// TestAlarmsLeaveRoom breaks all targets and hints at one of them. Its failed check causes early
// checks of all other targets. The early checks must use at most half of the concurrency limit, and
// all targets must be checked.
func TestAlarmsLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, stop := w.start(probe.Options{InFlight: 20})
		defer stop()
		m, all := targetsAt(100, 1, usual(func(h *balancer.Health) { h.Interval, h.FastInterval = 10*time.Minute, 2*time.Minute }))
		r.Set(m)
		time.Sleep(5 * time.Minute)
		w.become(all, true, time.Second)
		r.Hint(balancer.Target{Service: "web", Addr: all[0].Addr(), Port: all[0].Port()})
		time.Sleep(time.Minute)
		asked := 0
		for _, a := range all {
			if checks := w.checked(a); time.Since(checks[len(checks)-1]) <= time.Minute {
				asked++
			}
		}
		if w.most != 10 || asked != len(all) {
			t.Errorf("checked targets = %d of %d, concurrent checks = %d; want all targets, 10", asked, len(all), w.most)
		}
	})
}

// TestStorms breaks and repairs targets at random. Some have their own address, and some share an
// address. The time between two checks of a target must be at least the fast interval and, below
// the concurrency limit, at most the interval. The number of concurrent checks must not exceed the
// limit.
func TestStorms(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) { storm(t, seed) })
	}
}

func storm(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	w := newWorld(t)
	h := usual(func(h *balancer.Health) {
		h.FastInterval = []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, h.Interval}[rng.IntN(3)]
	})
	m, all := targetsAt(200, 1+rng.IntN(20), h)
	room := []int{80, 2 * len(all)}[seed%2]
	r, stop := w.start(probe.Options{Seed: seed, InFlight: room})
	r.Set(m)
	for range 40 {
		broken, takes := rng.IntN(2) == 0, time.Duration(rng.IntN(3))*450*time.Millisecond
		first := rng.IntN(len(all))
		w.become(all[first:min(len(all), first+1+rng.IntN(len(all)))], broken, takes)
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}
	w.become(all, true, 900*time.Millisecond)
	enough := h.Interval*time.Duration(h.Fall) + time.Second + 250*time.Millisecond
	if room < len(all) {
		enough *= 3
	}
	time.Sleep(enough)
	for target := range m.Keys() {
		if got := r.Verdicts().At(target); got != balancer.HealthDown {
			t.Fatalf("seed %d: after the detection time, verdict of %s = %q, want down", seed, target, got)
		}
	}
	stop()
	if w.most > room {
		t.Errorf("seed %d: concurrent checks = %d, want at most %d", seed, w.most, room)
	}
	for _, a := range all {
		checks := w.checked(a)
		for i, next := range checks[1:] {
			gap := next.Sub(checks[i])
			if gap < h.FastInterval*9/10 || room > len(all) && gap > h.Interval+10*time.Millisecond {
				t.Fatalf("seed %d: time between checks of %s = %v, want %v to %v", seed, a, gap, h.FastInterval, h.Interval)
			}
		}
	}
}
