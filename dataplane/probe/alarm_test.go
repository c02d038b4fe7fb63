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

// All of this file runs on synctest's clock: as in runner_test.go, each time.Sleep lets that go on,
// and takes no time.

// spread asks for checks of n targets of one service, at so many addresses.
func spread(n, addresses int, h *balancer.Health) (m snap.Map[balancer.Target, health.Subject], all []netip.AddrPort) {
	for i := range n {
		where := netip.AddrPortFrom(at(i%addresses).Addr(), uint16(1000+i/addresses))
		m = m.Set(balancer.Target{Service: "web", Addr: where.Addr(), Port: where.Port()}, health.Subject{At: where, Proto: balancer.TCP, Health: h})
		all = append(all, where)
	}
	return m, all
}

// become breaks or mends targets, whose checks last so long from now on.
func (w *world) become(all []netip.AddrPort, broken bool, takes time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range all {
		w.broken[a], w.takes[a] = broken, takes
	}
}

// until returns in how many reports n targets have changed, and how long after now all were told.
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
		w.t.Errorf("after %v %d targets more than expected are left", limit, n)
	}
	return reports, time.Since(began)
}

// TestChangeTogether: a thousand targets that fail at one moment are told in a few reports, and
// sooner than each by itself would be; so are those that recover. It makes no difference whether
// they are at one address or at many.
func TestChangeTogether(t *testing.T) {
	for i, c := range []struct {
		takes time.Duration
		most  int           // reports
		down  time.Duration // until the last is told
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
				m, all := spread(1000, addresses, usual(nil))
				r.Set(m)
				time.Sleep(10*time.Second + time.Duration(seed)*700*time.Millisecond)
				w.reported()
				for _, broken := range []bool{true, false} {
					takes, most, limit := c.takes, c.most, c.down
					if !broken {
						takes, most, limit = 0, 6, 2*time.Second // two checks decide: some are done before others are found
					}
					w.become(all, broken, takes)
					if reports, took := w.until(1000, 20*time.Second); reports > most || took > limit {
						t.Errorf("%d addresses, %v, seed %d: told that broken is %v in %d reports after %v, want at most %d and %v",
							addresses, c.takes, seed, broken, reports, took, most, limit)
					}
					time.Sleep(10 * time.Second) // in which they drift apart again
					w.apart(all)
				}
			})
		}
	}
}

// apart checks that the last checks of targets are spread over their interval, ten seconds after
// they changed together.
func (w *world) apart(all []netip.AddrPort) {
	w.t.Helper()
	slots := map[time.Duration]int{}
	for _, a := range all {
		checks := w.checked(a)
		slots[time.Since(checks[len(checks)-1])/(100*time.Millisecond)]++
	}
	for slot, n := range slots {
		if n > len(all)/5 {
			w.t.Errorf("%d of %d were checked %d00 ms ago", n, len(all), slot)
		}
	}
}

// TestFlappersDisturbFew: targets that fail now and then change nobody else's verdict, and have
// none of the others checked more than twice an interval; one among many adds less than a fifth to
// all checks.
func TestFlappersDisturbFew(t *testing.T) {
	for _, c := range []struct {
		targets, flappers int
		most              float64 // times as many checks as without
	}{{1000, 1, 1.2}, {50, 10, 2}} {
		synctest.Test(t, func(t *testing.T) {
			m, all := spread(c.targets, 1, usual(nil))
			w := newWorld(t)
			var flaps [10]int // of each, whose checks never overlap
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
				t.Errorf("%d reports", len(got))
			}
			total := 0
			for _, a := range all[c.flappers:] {
				checks := w.checked(a)
				total += len(checks)
				for i := range checks[4:] {
					if took := checks[i+4].Sub(checks[i]); took < 2900*time.Millisecond {
						t.Fatalf("%d flappers: %s was checked five times in %v", c.flappers, a, took)
					}
				}
			}
			alone := 180 / 1.9 * float64(c.targets-c.flappers)
			if flaps[0] < 100 || float64(total) > alone*c.most {
				t.Errorf("%d flappers: %d checks of others, want at most %.1f times %.0f", c.flappers, total, c.most, alone)
			}
		})
	}
}

// TestAlarmsLeaveRoom: what an alarm brings forward takes no more than half of the checks that may
// be under way.
func TestAlarmsLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r, stop := w.start(probe.Options{InFlight: 20})
		defer stop()
		m, all := spread(100, 1, usual(func(h *balancer.Health) { h.Interval, h.FastInterval = 10*time.Minute, 2*time.Minute }))
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
			t.Errorf("%d of %d were checked, %d at once, want all and 10", asked, len(all), w.most)
		}
	})
}

// TestStorms lets targets fail and recover at random, at addresses of their own and shared ones,
// and holds each result to what the rules say: the time between checks of one target is not less
// than the fast interval, nor more than the interval where there is room for all, and never are
// more under way than allowed.
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
	m, all := spread(200, 1+rng.IntN(20), h)
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
			t.Fatalf("seed %d: %s is %q, in more time than it takes to find out", seed, target, got)
		}
	}
	stop()
	if w.most > room {
		t.Errorf("seed %d: %d checks at once", seed, w.most)
	}
	for _, a := range all {
		checks := w.checked(a)
		for i, next := range checks[1:] {
			gap := next.Sub(checks[i])
			if gap < h.FastInterval*9/10 || room > len(all) && gap > h.Interval+10*time.Millisecond {
				t.Fatalf("seed %d: %s was checked again after %v", seed, a, gap)
			}
		}
	}
}
