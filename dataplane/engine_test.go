package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/dataplane/handover"
	"vipd/test/fake"
	"vipd/test/wait"
)

// fixture is an engine with a fake kernel and a seeded source of random changes.
type fixture struct {
	*rand.Rand
	t       *testing.T
	kernel  *fake.Kernel
	engine  *dataplane.Engine
	stop    func()
	desired balancer.Desired
	counts
}

// counts holds the work that the engine has reported.
type counts struct {
	syncs, full, changes, failed, programmed, repaired int
	damage                                             string // last reported damage that the engine has repaired
}

func (c *counts) Synced(full bool, _ time.Duration, changes int, failed bool) {
	c.syncs++
	c.changes += changes
	if full {
		c.full++
	}
	if failed {
		c.failed++
	}
}
func (c *counts) Programmed(time.Duration)    { c.programmed++ }
func (c *counts) Repaired(n int, what string) { c.repaired, c.damage = c.repaired+n, what }

func newFixture(t *testing.T, seed uint64) *fixture {
	w := &fixture{Rand: rand.New(rand.NewPCG(seed, 11)), t: t, kernel: fake.NewKernel()}
	w.start()
	return w
}

func (w *fixture) start() { w.startOver(fake.NewHost(w.kernel)) }

func (w *fixture) startOver(host dataplane.Host) { w.startWith(fake.New(w.kernel), host) }

func (w *fixture) startWith(dp dataplane.Dataplane, host dataplane.Host) {
	w.engine = dataplane.NewEngine(dataplane.Options{
		Dataplane: dp, Host: host, Log: slog.New(slog.DiscardHandler), Metrics: &w.counts,
	})
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error)
	engine := w.engine
	go func() { ended <- engine.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run = %v, want nil", err)
		}
	}
}

func (w *fixture) frontend(key balancer.Key) *balancer.Frontend {
	f := &balancer.Frontend{Key: key, Service: "s", Policy: balancer.Policy{Scheduler: balancer.RoundRobin}}
	for i := range w.IntN(4) {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 1, byte(i)}), 8080)
		f.Backends = append(f.Backends, balancer.Backend{Addr: at, State: balancer.Active, Weight: 1 + w.IntN(3)})
	}
	return f
}

func (w *fixture) key() balancer.Key {
	return balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(w.IntN(12))}), Port: 80, Proto: balancer.TCP}
}

// change makes a random change to the desired state, and calls Set with the result.
func (w *fixture) change() {
	for range 1 + w.IntN(6) {
		k := w.key()
		if w.IntN(3) == 0 {
			w.desired.Frontends = w.desired.Frontends.Delete(k)
			w.desired.Addresses = w.desired.Addresses.Delete(k.Addr)
			continue
		}
		w.desired.Frontends = w.desired.Frontends.Set(k, w.frontend(k))
		w.desired.Addresses = w.desired.Addresses.Set(k.Addr, 1)
	}
	w.set()
}

func (w *fixture) set() {
	w.desired.Revision.Store++
	w.desired.Revision.Seen = time.Now()
	w.engine.Set(w.desired)
}

// tamper removes or damages a frontend in the kernel.
func (w *fixture) tamper() {
	w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) {
		k := w.key()
		if w.IntN(2) == 0 {
			delete(f, k)
		} else {
			f[k] = 42
		}
	})
}

// difference describes a difference between the kernel and the desired state. If there is none, it
// returns "".
func (w *fixture) difference() string {
	there := w.kernel.Frontends()
	for k, f := range w.desired.Frontends.All() {
		if there[k] != dataplane.DigestOf(f) {
			return fmt.Sprintf("%s differs", k)
		}
	}
	if len(there) != w.desired.Frontends.Len() {
		return fmt.Sprintf("%d frontends, want %d", len(there), w.desired.Frontends.Len())
	}
	if a := w.kernel.Addresses(); len(a) != w.desired.Addresses.Len() {
		return fmt.Sprintf("%d addresses, want %d", len(a), w.desired.Addresses.Len())
	}
	return ""
}

// TestEngineConverges makes the desired state change, calls fail, the kernel's state drift and
// engines restart, at random. Once calls no longer fail, the kernel must reach the desired state.
func TestEngineConverges(t *testing.T) {
	for seed := range uint64(wait.Soak(200, 1000)) {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t, seed)
			drift := seed%2 == 0
			for range 25 {
				switch w.IntN(7) {
				case 0, 1, 2:
					w.change()
				case 3:
					keys := map[balancer.Key]bool{w.key(): w.IntN(2) == 0}
					w.kernel.Fail(fake.Faults{Share: w.Float64() / 2, Keys: keys, ByKey: w.IntN(2) == 0}, seed)
				case 4:
					if drift {
						w.tamper()
					}
				case 5:
					w.stop()
					w.start()
					w.set()
				case 6:
					w.kernel.Fail(fake.Faults{}, seed)
				}
				time.Sleep(time.Duration(w.IntN(3000)) * time.Millisecond) // virtual time (synctest)
			}
			w.kernel.Fail(fake.Faults{}, seed)
			w.change()
			// Three minutes cover the longest backoff and one check, which detects removed
			// frontends. A damaged frontend is detected only by the next full comparison, so drift
			// needs nine more minutes.
			time.Sleep(3 * time.Minute)
			if drift {
				time.Sleep(9 * time.Minute)
			}
			if d := w.difference(); d != "" {
				t.Errorf("seed %d: difference = %q, want none", seed, d)
			}
			s := w.engine.Status()
			if !s.Ready || len(s.Failing) > 0 || s.Applied.Store != w.desired.Revision.Store || s.LastError != "" {
				t.Errorf("seed %d: status = %+v, want ready without failures at revision %d", seed, s, w.desired.Revision.Store)
			}
			w.stop()
		})
	}
}

// TestEngineBeforeFirstSet starts an engine on a kernel that has a frontend. Before the first Set,
// the engine must write nothing. After Set, it must remove the frontend.
func TestEngineBeforeFirstSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) { f[w.key()] = 42 })
		time.Sleep(time.Hour)
		if w.kernel.Writes() != 0 || len(w.kernel.Frontends()) != 1 || w.engine.Status().Ready {
			t.Error("before the first Set: the engine wrote or was ready, want neither")
		}
		w.set()
		time.Sleep(time.Second)
		if len(w.kernel.Frontends()) != 0 || !w.engine.Status().Ready {
			t.Error("after the first Set: the frontend still exists, want it removed")
		}
		w.stop()
	})
}

// TestEngineOneBadFrontend applies 200 frontends, one of which fails. In the first case, the error
// names the frontend's key, and in the second it does not. The other 199 frontends must be applied
// immediately.
func TestEngineOneBadFrontend(t *testing.T) {
	for _, byKey := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t, 1)
			for i := range 200 {
				k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Port: 80, Proto: balancer.TCP}
				w.desired.Frontends = w.desired.Frontends.Set(k, w.frontend(k))
				w.desired.Addresses = w.desired.Addresses.Set(k.Addr, 1)
			}
			poison := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, 0, 77}), Port: 80, Proto: balancer.TCP}
			w.kernel.Fail(fake.Faults{Keys: map[balancer.Key]bool{poison: true}, ByKey: byKey}, 1)
			w.set()
			time.Sleep(50 * time.Millisecond)
			if n := len(w.kernel.Frontends()); n != 199 {
				t.Errorf("byKey %v: frontends = %d, want 199", byKey, n)
			}
			s := w.engine.Status()
			if len(s.Failing) != 1 || s.Failing[poison] == nil || !s.Ready {
				t.Errorf("byKey %v: failing = %v, ready = %v; want only the bad frontend, true", byKey, s.Failing, s.Ready)
			}
			w.kernel.Fail(fake.Faults{}, 1)
			time.Sleep(2 * time.Minute)
			if d := w.difference(); d != "" {
				t.Errorf("byKey %v: difference = %q, want none", byKey, d)
			}
			w.stop()
		})
	}
}

// TestEngineUnremovableLeftover starts an engine on a kernel with a frontend that can't be removed.
// The engine must still become ready.
func TestEngineUnremovableLeftover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		only := func(n byte) balancer.Key {
			k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, 0, n}), Port: 80, Proto: balancer.TCP}
			w.desired.Frontends = snap.Map[balancer.Key, *balancer.Frontend]{}.Set(k, w.frontend(k))
			w.desired.Addresses = snap.Map[netip.Addr, int]{}.Set(k.Addr, 1)
			return k
		}
		left := only(1)
		w.set()
		time.Sleep(time.Minute)
		w.stop()
		w.kernel.Fail(fake.Faults{Keys: map[balancer.Key]bool{left: true}, ByKey: true}, 1)
		w.start()
		only(2)
		w.set()
		time.Sleep(time.Minute)
		if s := w.engine.Status(); !s.Ready || len(s.Failing) != 1 {
			t.Errorf("ready = %v, failing = %v; want true, 1 failing frontend", s.Ready, s.Failing)
		}
		w.kernel.Fail(fake.Faults{}, 1)
		w.stop()
	})
}

// gatedHost is a host that refuses changes to frontends with source ranges while shut is true.
type gatedHost struct {
	*fake.Host
	shut atomic.Bool
	// broken reports whether Prepare also fails while shut is true.
	broken bool
}

var errShut = errors.New("the restriction is not in force")

func (h *gatedHost) Prepare(ctx context.Context, want balancer.Desired) error {
	err := h.Host.Prepare(ctx, want)
	if h.broken && h.shut.Load() {
		err = errors.Join(err, errShut)
	}
	return err
}

func (h *gatedHost) Ready(c dataplane.Change, _ bool) error {
	if h.shut.Load() && len(c.New.Sources) > 0 {
		return errShut
	}
	return nil
}

// inheritor is a dataplane that counts the calls of Discard.
type inheritor struct {
	*fake.Dataplane
	waiting, final atomic.Int64 // calls with waiting = true and false
}

func (*inheritor) HandOver(context.Context, *handover.Queue) error { return nil }
func (*inheritor) Inherit([]handover.Item)                         {}
func (d *inheritor) Discard(waiting bool) {
	if waiting {
		d.waiting.Add(1)
	} else {
		d.final.Add(1)
	}
}

// TestEngineDiscardsInherited applies a frontend while the host refuses another one. Discard must
// be called with waiting set until the host permits the other frontend.
func TestEngineDiscardsInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{Rand: rand.New(rand.NewPCG(1, 11)), t: t, kernel: fake.NewKernel()}
		host, d := &gatedHost{Host: fake.NewHost(w.kernel)}, &inheritor{Dataplane: fake.New(w.kernel)}
		host.shut.Store(true)
		w.startWith(d, host)
		defer func() { w.stop() }()
		for i := range 2 {
			f := w.frontend(balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Port: 80, Proto: balancer.TCP})
			if i == 1 {
				f.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			}
			w.desired.Frontends = w.desired.Frontends.Set(f.Key, f)
			w.desired.Addresses = w.desired.Addresses.Set(f.Addr, 1)
		}
		w.set()
		time.Sleep(time.Minute)
		synctest.Wait()
		if d.waiting.Load() == 0 || d.final.Load() > 0 {
			t.Errorf("calls of Discard with and without waiting = %d, %d; want only the former", d.waiting.Load(), d.final.Load())
		}
		host.shut.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if d.final.Load() == 0 {
			t.Error("calls of Discard without waiting = 0 after the host permits the frontend, want at least 1")
		}
	})
}

// TestEngineHeldChange changes frontends while the host refuses these changes. The frontends must
// stay unchanged, and must change soon after the host permits it. Until then, it must be possible
// to remove them, and other frontends must not wait for them.
func TestEngineHeldChange(t *testing.T) {
	for _, broken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := &fixture{Rand: rand.New(rand.NewPCG(1, 11)), t: t, kernel: fake.NewKernel()}
			host := &gatedHost{Host: fake.NewHost(w.kernel), broken: broken}
			w.startOver(host)
			put := func(i int, edit func(*balancer.Frontend)) balancer.Key {
				k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Port: 80, Proto: balancer.TCP}
				f := w.frontend(k)
				edit(f)
				w.desired.Frontends = w.desired.Frontends.Set(k, f)
				w.desired.Addresses = w.desired.Addresses.Set(k.Addr, 1)
				return k
			}
			plain := func(*balancer.Frontend) {}
			restricted := func(f *balancer.Frontend) { f.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }
			opened := put(1, plain)
			w.set()
			time.Sleep(time.Minute)
			before := w.kernel.Frontends()[opened]

			host.shut.Store(true)
			tightened, fresh, gone := put(1, restricted), put(2, restricted), put(3, restricted)
			for i := range 20 {
				put(10+i, plain)
			}
			w.set()
			time.Sleep(time.Second)
			there := w.kernel.Frontends()
			if len(there) != 21 || there[tightened] != before {
				t.Errorf("broken %v: frontends = %d, want 21; held frontend changed = %v, want false", broken, len(there), there[tightened] != before)
			}
			s := w.engine.Status()
			if len(s.Failing) != 3 || !errors.Is(s.Failing[fresh], errShut) || !s.Ready {
				t.Errorf("broken %v: failing = %v, ready = %v; want 3 failures with errShut, true", broken, s.Failing, s.Ready)
			}
			w.desired.Frontends = w.desired.Frontends.Delete(gone).Delete(opened)
			w.desired.Addresses = w.desired.Addresses.Delete(gone.Addr).Delete(opened.Addr)
			w.set()
			time.Sleep(time.Minute)
			if there := w.kernel.Frontends(); len(there) != 20 {
				t.Errorf("broken %v: after two removals: frontends = %d, want 20", broken, len(there))
			}
			synctest.Wait()
			failed := w.failed
			for range 100 { // a held change must be retried and reported only as often as its backoff permits
				put(50, plain)
				w.set()
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
			if n := w.failed - failed; !broken && n > 3 {
				t.Errorf("failed rounds in 10 s with a held frontend = %d, want at most 3", n)
			}

			host.shut.Store(false)
			if !broken {
				put(51, plain) // triggers another round
				w.set()
				synctest.Wait()
				time.Sleep(200 * time.Millisecond)
			} else {
				time.Sleep(time.Minute)
			}
			if d := w.difference(); d != "" || len(w.engine.Status().Failing) > 0 {
				t.Errorf("broken %v: difference = %q, failing = %v; want neither", broken, d, w.engine.Status().Failing)
			}
			w.stop()
		})
	}
}

// TestEngineTotalFailure makes every Apply of 5,000 frontends fail. The engine must retry rarely,
// and must not be ready. When Apply no longer fails, the engine must recover.
func TestEngineTotalFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		for i := range 5000 {
			k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Port: 80, Proto: balancer.TCP}
			w.desired.Frontends = w.desired.Frontends.Set(k, w.frontend(k))
			w.desired.Addresses = w.desired.Addresses.Set(k.Addr, 1)
		}
		w.set()
		w.kernel.Fail(fake.Faults{Share: 1}, 1)
		time.Sleep(20 * time.Minute)
		before := w.kernel.Applies()
		time.Sleep(10 * time.Minute)
		// A round calls Apply at most about 30 times, and there are two rounds a minute.
		if n := w.kernel.Applies() - before; n > 10*2*32 {
			t.Errorf("calls to Apply in ten minutes of failures = %d, want at most 640", n)
		}
		if s := w.engine.Status(); s.Ready || !s.Tried {
			t.Errorf("during the failure: ready = %v, tried = %v; want false, true", s.Ready, s.Tried)
		}
		w.kernel.Fail(fake.Faults{}, 1)
		time.Sleep(3 * time.Minute)
		if d := w.difference(); d != "" || !w.engine.Status().Ready {
			t.Errorf("after the failure: difference = %q, ready = %v; want none, true", d, w.engine.Status().Ready)
		}
		w.stop()
	})
}

// TestEngineRevertedFailure reverts a change while it fails. The kernel must return to the state
// before the change.
func TestEngineRevertedFailure(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t, seed)
			fill := func() {
				for i := range 100 {
					k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Port: 80, Proto: balancer.TCP}
					w.desired.Frontends = w.desired.Frontends.Set(k, w.frontend(k))
					w.desired.Addresses = w.desired.Addresses.Set(k.Addr, 1)
				}
				w.set()
			}
			fill()
			time.Sleep(time.Second)
			before := w.desired.Frontends
			w.kernel.Fail(fake.Faults{Share: 1}, seed)
			fill()
			time.Sleep(300 * time.Millisecond)
			w.kernel.Fail(fake.Faults{}, seed)
			w.desired.Frontends = before
			w.set()
			time.Sleep(time.Minute)
			if d := w.difference(); d != "" || len(w.engine.Status().Failing) > 0 {
				t.Errorf("seed %d: difference = %q, failing = %v; want neither", seed, d, w.engine.Status().Failing)
			}
			w.stop()
		})
	}
}

// TestEngineManyBadFrontends applies 300 frontends. 60 adjacent frontends fail, which is more than
// maxFailures. The other 240 must be applied within ten seconds.
func TestEngineManyBadFrontends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		bad := map[balancer.Key]bool{}
		for i := range 300 {
			k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Port: 80, Proto: balancer.TCP}
			w.desired.Frontends = w.desired.Frontends.Set(k, w.frontend(k))
			w.desired.Addresses = w.desired.Addresses.Set(k.Addr, 1)
			bad[k] = i < 60
		}
		w.kernel.Fail(fake.Faults{Keys: bad}, 1)
		w.set()
		time.Sleep(10 * time.Second)
		if n := len(w.kernel.Frontends()); n != 240 {
			t.Errorf("frontends after 10 s = %d, want 240", n)
		}
		w.stop()
	})
}

// TestEngineReplacedRange replaces a port range with an overlapping range, whose key sorts before
// or after the old key. No round may fail.
func TestEngineReplacedRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		a := netip.MustParseAddr("10.1.0.1")
		w.desired.Addresses = w.desired.Addresses.Set(a, 1)
		for _, first := range []uint16{8000, 8500, 8200} {
			k := balancer.Key{Addr: a, Port: balancer.NewPortRange(first, first+999), Proto: balancer.TCP}
			w.desired.Frontends = snap.Map[balancer.Key, *balancer.Frontend]{}.Set(k, w.frontend(k))
			w.set()
			time.Sleep(10 * time.Second)
			if _, served := w.kernel.Frontends()[k]; !served || w.failed > 0 {
				t.Errorf("%s: served = %v, failed rounds = %d; want true, 0", k, served, w.failed)
			}
		}
		w.stop()
	})
}

// TestEngineBurst makes one change after a pause, and then 1,000 changes within a second. The first
// change must be applied immediately. The engine must apply the other changes in about ten rounds.
func TestEngineBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1)
		w.set()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.counts = counts{}
		w.change()
		synctest.Wait()
		if d := w.difference(); d != "" {
			t.Errorf("after the first change: difference = %q, want none", d)
		}
		for range 1000 {
			w.change()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if w.syncs > 13 || w.syncs < 8 {
			t.Errorf("rounds for 1000 changes in a second = %d, want about 10", w.syncs)
		}
		w.stop()
	})
}

// TestEngineRepairsDrift removes all frontends from the kernel, five times in succession. The
// engine must restore them within two seconds each time.
func TestEngineRepairsDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 3)
		w.change()
		time.Sleep(time.Minute)
		for i := range 5 {
			removed := time.Now()
			w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) { clear(f) })
			for w.difference() != "" && time.Since(removed) < time.Minute {
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
			if took := time.Since(removed); took > 2*time.Second+100*time.Millisecond {
				t.Errorf("damage %d was repaired after %s, want at most 2 s", i+1, took)
			}
		}
		if d := w.difference(); d != "" || w.repaired == 0 || w.engine.Status().Repairs == 0 {
			t.Errorf("at the end: difference = %q, repairs = %d; want none, at least 1", d, w.repaired)
		}
		w.stop()
	})
}

// alerting is a host that alerts the engine when the test requests it.
type alerting struct {
	dataplane.Host
	alerts chan struct{}
}

func (a alerting) Alerts(ctx context.Context, tell func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.alerts:
			tell()
		}
	}
}

// TestEngineAlert removes all frontends, and makes the host alert the engine. The engine must
// restore the frontends immediately.
func TestEngineAlert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{Rand: rand.New(rand.NewPCG(5, 11)), t: t, kernel: fake.NewKernel()}
		host := alerting{fake.NewHost(w.kernel), make(chan struct{})}
		w.startOver(host)
		for w.desired.Frontends.Len() == 0 {
			w.change()
		}
		time.Sleep(10 * time.Second)
		for range 3 {
			time.Sleep(1300 * time.Millisecond) // sleep into the interval between two checks, the first of which found no damage
			w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) { clear(f) })
			host.alerts <- struct{}{}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if d := w.difference(); d != "" {
				t.Errorf("difference 1 ms after an alert = %q, want none", d)
			}
		}
		w.stop()
	})
}

// mending is a host that reports two repaired objects at every check.
type mending struct{ dataplane.Host }

func (mending) Repaired() []string { return []string{"a was 0", "b was 0"} }

// TestEngineHostRepairs uses a host that repairs objects at every check. The engine must report and
// count each repair. No repair may cause a full comparison.
func TestEngineHostRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{Rand: rand.New(rand.NewPCG(4, 11)), t: t, kernel: fake.NewKernel()}
		w.startOver(mending{fake.NewHost(w.kernel)})
		w.change()
		time.Sleep(10500 * time.Millisecond)
		synctest.Wait()
		if n := w.engine.Status().Repairs; n != 20 || w.repaired != n || w.damage != "a was 0; b was 0" || w.full != 1 {
			t.Errorf("after 10 checks: repairs = %d, reported repairs = %d, last damage = %q, full comparisons = %d; want 20, 20, both objects, 1", n, w.repaired, w.damage, w.full)
		}
		w.stop()
	})
}

// slow is a mending host whose Finish takes 300 ms.
type slow struct{ mending }

func (s slow) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	time.Sleep(300 * time.Millisecond)
	return s.mending.Finish(ctx, applied)
}

// TestCompareDuringRound calls Compare during a round that publishes a status. Compare must return
// only after the round in which it compares.
func TestCompareDuringRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{Rand: rand.New(rand.NewPCG(3, 11)), t: t, kernel: fake.NewKernel()}
		w.startOver(slow{mending{fake.NewHost(w.kernel)}})
		for w.desired.Frontends.Len() == 0 {
			w.change()
		}
		time.Sleep(10 * time.Second)
		w.change()
		synctest.Wait() // the comparison starts only after the current round
		w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) { clear(f) })
		s, err := w.engine.Compare(t.Context())
		if err != nil || s.Last.Before(s.Compared) || w.difference() != "" {
			t.Errorf("end of the last round = %v, start of the comparison = %v, error = %v, difference = %q; want an end after the start and no difference", s.Last, s.Compared, err, w.difference())
		}
		w.stop()
	})
}

// failing is a host whose Finish returns an error while fails is true.
type failing struct {
	dataplane.Host
	fails *atomic.Bool
}

func (f failing) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	if f.fails.Load() {
		return errors.New("no such device")
	}
	return f.Host.Finish(ctx, applied)
}

// TestBehindWhileHostFails makes the host fail for five minutes, during which the desired state
// changes. Behind must return the time of the first failure. After the host has recovered, Behind
// must return zero.
func TestBehindWhileHostFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{Rand: rand.New(rand.NewPCG(5, 11)), t: t, kernel: fake.NewKernel()}
		fails := &atomic.Bool{}
		w.startOver(failing{fake.NewHost(w.kernel), fails})
		behind := func(want time.Duration) {
			t.Helper()
			synctest.Wait()
			got := time.Duration(0)
			if since := w.engine.Behind(); !since.IsZero() {
				got = time.Since(since)
			}
			if got != want {
				t.Errorf("time since Behind() = %s, want %s; last error = %q", got, want, w.engine.Status().LastError)
			}
		}
		w.change()
		time.Sleep(time.Second)
		behind(0)
		fails.Store(true)
		for range 5 {
			w.change()
			time.Sleep(time.Minute)
		}
		behind(5 * time.Minute)
		fails.Store(false)
		time.Sleep(2 * time.Minute)
		behind(0)
		w.stop()
	})
}

// hanging is a host whose Finish blocks until goesOn is closed.
type hanging struct {
	dataplane.Host
	goesOn chan struct{}
}

func (h hanging) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	<-h.goesOn
	return h.Host.Finish(ctx, applied)
}

// TestWorkingWhileHostHangs makes the host hang for two minutes. Until it continues, Working must
// return the time that has passed. While the engine's loop is idle, Working must return zero.
func TestWorkingWhileHostHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel, goesOn := fake.NewKernel(), make(chan struct{})
		e := dataplane.NewEngine(dataplane.Options{
			Dataplane: fake.New(kernel), Host: hanging{fake.NewHost(kernel), goesOn}, Log: slog.New(slog.DiscardHandler),
			MinInterval: time.Hour, ProbeInterval: time.Hour, ResyncInterval: time.Hour,
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = e.Run(ctx) }) // Run always returns nil
		after := func(d, want time.Duration) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := e.Working(); got != want {
				t.Errorf("Working() = %s, want %s", got, want)
			}
		}
		after(10*time.Minute, 0)
		e.Set(balancer.Desired{})
		after(2*time.Minute, 2*time.Minute)
		close(goesOn)
		after(0, 0)
		after(10*time.Minute, 0)
		cancel()
		running.Wait()
	})
}

// blind is a dataplane whose Intact returns an error.
type blind struct{ dataplane.Dataplane }

func (b blind) Unwrap() dataplane.Dataplane { return b.Dataplane }

func (blind) Intact(context.Context) (string, error) {
	return "", errors.New("the kernel does not answer")
}

// TestEngineRepairsHostWhileDataplaneFails removes all VIPs from the host while the dataplane's
// checks fail. The engine must restore the VIPs.
func TestEngineRepairsHostWhileDataplaneFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 3)
		w.stop()
		w.startWith(blind{fake.New(w.kernel)}, fake.NewHost(w.kernel))
		for w.desired.Addresses.Len() == 0 {
			w.change()
		}
		time.Sleep(time.Minute)
		w.kernel.TamperAddresses(func(all map[netip.Addr]bool) { clear(all) })
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if d := w.difference(); d != "" || w.repaired == 0 || w.damage == "" {
			t.Errorf("after 1.5 s: difference = %q, repairs = %d, damage = %q; want none, at least 1, the reported damage", d, w.repaired, w.damage)
		}
		w.stop()
	})
}

// turning is a dataplane whose first checks find damage, and whose later checks fail.
type turning struct {
	dataplane.Dataplane
	looks *atomic.Int64
}

func (d turning) Unwrap() dataplane.Dataplane { return d.Dataplane }

func (d turning) Intact(context.Context) (string, error) {
	if d.looks.Add(1) <= 6 {
		return "a rule was removed", nil
	}
	return "", errors.New("the kernel does not answer")
}

// TestEngineLooksWhileLooksFail makes six consecutive checks find damage, so the engine checks less
// often. Then it makes the checks fail. The engine must then check every second again.
func TestEngineLooksWhileLooksFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 3)
		w.stop()
		looks := &atomic.Int64{}
		w.startWith(turning{fake.New(w.kernel), looks}, fake.NewHost(w.kernel))
		w.change()
		for looks.Load() < 7 {
			time.Sleep(time.Second)
		}
		time.Sleep(10500 * time.Millisecond)
		synctest.Wait()
		if n := looks.Load() - 7; n < 10 {
			t.Errorf("checks in 10 s = %d, want 10", n)
		}
		w.stop()
	})
}

// TestEngineRestart restarts an engine while the kernel already has the desired state. The new
// engine must write nothing.
func TestEngineRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 4)
		w.change()
		time.Sleep(time.Minute)
		w.stop()
		writes := w.kernel.Writes()
		w.start()
		w.set()
		time.Sleep(time.Minute)
		if n := w.kernel.Writes() - writes; n != 0 || !w.engine.Status().Ready {
			t.Errorf("writes after the restart = %d, want 0", n)
		}
		w.stop()
	})
}
