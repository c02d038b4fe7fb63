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
	"vipd/test/fake"
	"vipd/test/wait"
)

// world is an engine over a fake kernel, with a random history.
type world struct {
	*rand.Rand
	t       *testing.T
	kernel  *fake.Kernel
	engine  *dataplane.Engine
	stop    func()
	desired balancer.Desired
	counts
}

// counts is what the engine reported.
type counts struct {
	syncs, full, changes, failed, programmed, repaired int
	damage                                             string // what was repaired last
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

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 11)), t: t, kernel: fake.NewKernel()}
	w.start()
	return w
}

// start starts an engine over what the kernel holds.
func (w *world) start() { w.startOver(fake.NewHost(w.kernel)) }

func (w *world) startOver(host dataplane.Host) { w.startWith(fake.New(w.kernel), host) }

func (w *world) startWith(dp dataplane.Dataplane, host dataplane.Host) {
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
			w.t.Error("Run returned", err)
		}
	}
}

func (w *world) frontend(key balancer.Key) *balancer.Frontend {
	f := &balancer.Frontend{Key: key, Service: "s", Policy: balancer.Policy{Scheduler: balancer.RoundRobin}}
	for i := range w.IntN(4) {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 1, byte(i)}), 8080)
		f.Backends = append(f.Backends, balancer.Backend{Addr: at, State: balancer.Active, Weight: 1 + w.IntN(3)})
	}
	return f
}

func (w *world) key() balancer.Key {
	return balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(w.IntN(12))}), Port: 80, Proto: balancer.TCP}
}

// change makes some random changes to what is wanted, and sets it.
func (w *world) change() {
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

func (w *world) set() {
	w.desired.Revision.Store++
	w.desired.Revision.Seen = time.Now()
	w.engine.Set(w.desired)
}

// tamper breaks something behind the engine's back.
func (w *world) tamper() {
	w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) {
		k := w.key()
		if w.IntN(2) == 0 {
			delete(f, k)
		} else {
			f[k] = 42
		}
	})
}

// difference says how the kernel differs from what is wanted; "" means not at all.
func (w *world) difference() string {
	there := w.kernel.Frontends()
	for k, f := range w.desired.Frontends.All() {
		if there[k] != dataplane.DigestOf(f) {
			return fmt.Sprintf("%s is not as wanted", k)
		}
	}
	if len(there) != w.desired.Frontends.Len() {
		return fmt.Sprintf("%d frontends are there, %d are wanted", len(there), w.desired.Frontends.Len())
	}
	if a := w.kernel.Addresses(); len(a) != w.desired.Addresses.Len() {
		return fmt.Sprintf("%d addresses are there, %d are wanted", len(a), w.desired.Addresses.Len())
	}
	return ""
}

// TestConverges is the law of the engine: after any history of changes, failures, drift and restarts, the kernel is what
// is wanted once the failures end.
func TestConverges(t *testing.T) {
	for seed := range uint64(wait.Soak(200, 1000)) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
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
				time.Sleep(time.Duration(w.IntN(3000)) * time.Millisecond) // virtual: the bubble's clock
			}
			w.kernel.Fail(fake.Faults{}, seed)
			w.change()
			// The longest backoff and a probe are enough, unless someone has changed things without removing them, which
			// only the full comparison finds.
			time.Sleep(3 * time.Minute)
			if drift {
				time.Sleep(9 * time.Minute)
			}
			if d := w.difference(); d != "" {
				t.Errorf("seed %d: %s", seed, d)
			}
			s := w.engine.Status()
			if !s.Ready || len(s.Failing) > 0 || s.Applied.Store != w.desired.Revision.Store || s.LastError != "" {
				t.Errorf("seed %d: status %+v", seed, s)
			}
			w.stop()
		})
	}
}

func TestNothingBeforeFirstSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) { f[w.key()] = 42 })
		time.Sleep(time.Hour)
		if w.kernel.Writes() != 0 || len(w.kernel.Frontends()) != 1 || w.engine.Status().Ready {
			t.Error("the engine wrote before it knew what is wanted")
		}
		w.set()
		time.Sleep(time.Second)
		if len(w.kernel.Frontends()) != 0 || !w.engine.Status().Ready {
			t.Error("an orphan was left")
		}
		w.stop()
	})
}

// TestPoison checks that one frontend that can't be applied keeps none of 199 others waiting, whether the dataplane
// names the culprit or not.
func TestPoison(t *testing.T) {
	for _, byKey := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
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
				t.Errorf("byKey %v: %d frontends are there, want 199", byKey, n)
			}
			s := w.engine.Status()
			if len(s.Failing) != 1 || s.Failing[poison] == nil || !s.Ready {
				t.Errorf("byKey %v: failing %v, ready %v", byKey, s.Failing, s.Ready)
			}
			w.kernel.Fail(fake.Faults{}, 1)
			time.Sleep(2 * time.Minute)
			if d := w.difference(); d != "" {
				t.Errorf("byKey %v: %s", byKey, d)
			}
			w.stop()
		})
	}
}

// TestLeftoversDontMatter: what an earlier process has left and can't be removed does not keep the engine from being ready.
func TestLeftoversDontMatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
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
			t.Errorf("ready %v, failing %v", s.Ready, s.Failing)
		}
		w.kernel.Fail(fake.Faults{}, 1)
		w.stop()
	})
}

// gatedHost is a host that lets nothing with source ranges be applied while it is shut.
type gatedHost struct {
	*fake.Host
	shut atomic.Bool
	// broken: Prepare fails while it is shut.
	broken bool
}

var errShut = errors.New("what restricts it is not in force")

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

// TestHeldBack checks that what the host does not let be applied yet stays what it is, that nothing else waits for it,
// that it can be removed, and that it is applied soon after the host lets it, whether anything else happens or not.
func TestHeldBack(t *testing.T) {
	for _, broken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{Rand: rand.New(rand.NewPCG(1, 11)), t: t, kernel: fake.NewKernel()}
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
				t.Errorf("broken %v: %d frontends are there, want 21; the one that is to be restricted has changed: %v", broken, len(there), there[tightened] != before)
			}
			s := w.engine.Status()
			if len(s.Failing) != 3 || !errors.Is(s.Failing[fresh], errShut) || !s.Ready {
				t.Errorf("broken %v: failing %v, ready %v", broken, s.Failing, s.Ready)
			}
			w.desired.Frontends = w.desired.Frontends.Delete(gone).Delete(opened)
			w.desired.Addresses = w.desired.Addresses.Delete(gone.Addr).Delete(opened.Addr)
			w.set()
			time.Sleep(time.Minute)
			if there := w.kernel.Frontends(); len(there) != 20 {
				t.Errorf("broken %v: after removing two, %d frontends are there, want 20", broken, len(there))
			}
			synctest.Wait()
			failed := w.failed
			for range 100 { // held back all the time, it is tried and reported at the pace of the backoff
				put(50, plain)
				w.set()
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
			if n := w.failed - failed; !broken && n > 3 {
				t.Errorf("%d rounds of 10 s failed for one frontend that is held back", n)
			}

			host.shut.Store(false)
			if !broken {
				put(51, plain) // any other round will do
				w.set()
				synctest.Wait()
				time.Sleep(200 * time.Millisecond)
			} else {
				time.Sleep(time.Minute)
			}
			if d := w.difference(); d != "" || len(w.engine.Status().Failing) > 0 {
				t.Errorf("broken %v: %s, failing %v", broken, d, w.engine.Status().Failing)
			}
			w.stop()
		})
	}
}

// TestTotalFailureRests checks that a dataplane in which nothing works is not kept busy, is not called ready, and recovers.
func TestTotalFailureRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
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
		// A round of some 30 calls at most, at least twice a minute.
		if n := w.kernel.Applies() - before; n > 10*2*32 {
			t.Errorf("%d calls of Apply in ten minutes of total failure", n)
		}
		if s := w.engine.Status(); s.Ready || !s.Tried {
			t.Errorf("ready %v, tried %v while nothing works", s.Ready, s.Tried)
		}
		w.kernel.Fail(fake.Faults{}, 1)
		time.Sleep(3 * time.Minute)
		if d := w.difference(); d != "" || !w.engine.Status().Ready {
			t.Errorf("after the failure: %q, ready %v", d, w.engine.Status().Ready)
		}
		w.stop()
	})
}

// TestTakenBackAfterFailure takes back a change of which the dataplane did some, and failed, until the engine left the rest for later.
func TestTakenBackAfterFailure(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
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
				t.Errorf("seed %d: %q, failing %v", seed, d, w.engine.Status().Failing)
			}
			w.stop()
		})
	}
}

// TestManyPoisons checks that bad frontends in a row, more than the engine's patience, keep the good ones waiting for
// seconds at most.
func TestManyPoisons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
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
			t.Errorf("%d frontends are there after 10 s, want 240", n)
		}
		w.stop()
	})
}

// TestSpacing checks that the first change after quiet does not wait, and that a burst costs few syncs.
func TestSpacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.set()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.counts = counts{}
		w.change()
		synctest.Wait()
		if d := w.difference(); d != "" {
			t.Error("the first change after quiet waited:", d)
		}
		for range 1000 {
			w.change()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if w.syncs > 13 || w.syncs < 8 {
			t.Errorf("1000 changes in a second made %d syncs, want about 10", w.syncs)
		}
		w.stop()
	})
}

// TestDriftIsMended removes all frontends behind the engine's back, five times in a row.
func TestDriftIsMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
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
				t.Errorf("damage %d was mended after %s", i+1, took)
			}
		}
		if d := w.difference(); d != "" || w.repaired == 0 || w.engine.Status().Repairs == 0 {
			t.Errorf("in the end: %q, %d repairs", d, w.repaired)
		}
		w.stop()
	})
}

// alerting is a host that is told when somebody has changed something.
type alerting struct {
	dataplane.Host
	told chan struct{}
}

func (a alerting) Alerts(ctx context.Context, tell func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.told:
			tell()
		}
	}
}

// TestAlertsAreLookedInto: what somebody changes is mended at once where the host hears of it.
func TestAlertsAreLookedInto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{Rand: rand.New(rand.NewPCG(5, 11)), t: t, kernel: fake.NewKernel()}
		host := alerting{fake.NewHost(w.kernel), make(chan struct{})}
		w.startOver(host)
		for w.desired.Frontends.Len() == 0 {
			w.change()
		}
		time.Sleep(10 * time.Second)
		for range 3 {
			time.Sleep(1300 * time.Millisecond) // between two probes, after one that found all in order
			w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) { clear(f) })
			host.told <- struct{}{}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if d := w.difference(); d != "" {
				t.Errorf("1 ms after an alert: %s", d)
			}
		}
		w.stop()
	})
}

// mending is a host that mends something by itself at every look.
type mending struct{ dataplane.Host }

func (mending) Mended() []string { return []string{"a was 0", "b was 0"} }

// TestMendedByTheHost: what the host mends as it looks is told and counted each time, and makes nobody compare in full.
func TestMendedByTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{Rand: rand.New(rand.NewPCG(4, 11)), t: t, kernel: fake.NewKernel()}
		w.startOver(mending{fake.NewHost(w.kernel)})
		w.change()
		time.Sleep(10500 * time.Millisecond)
		synctest.Wait()
		if n := w.engine.Status().Repairs; n != 20 || w.repaired != n || w.damage != "a was 0; b was 0" || w.full != 1 {
			t.Errorf("after 10 looks: %d repairs, %d told, the last %q, %d full comparisons", n, w.repaired, w.damage, w.full)
		}
		w.stop()
	})
}

// slow is a host of which each round ends late.
type slow struct{ mending }

func (s slow) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	time.Sleep(300 * time.Millisecond)
	return s.mending.Finish(ctx, applied)
}

// TestCompareEndsWithItsRound: what is published in the middle of it does not end it.
func TestCompareEndsWithItsRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{Rand: rand.New(rand.NewPCG(3, 11)), t: t, kernel: fake.NewKernel()}
		w.startOver(slow{mending{fake.NewHost(w.kernel)}})
		for w.desired.Frontends.Len() == 0 {
			w.change()
		}
		time.Sleep(10 * time.Second)
		w.change()
		synctest.Wait() // the comparison begins after this round
		w.kernel.Tamper(func(f map[balancer.Key]dataplane.Digest) { clear(f) })
		s, err := w.engine.Compare(t.Context())
		if err != nil || s.Last.Before(s.Compared) || w.difference() != "" {
			t.Errorf("the last round ended at %v, the comparison began at %v, %v; %s", s.Last, s.Compared, err, w.difference())
		}
		w.stop()
	})
}

// failing is a host whose end of a round fails while it is told to.
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

// TestBehind: while the host's side of what is wanted fails, it is known since when, whatever else is wanted meanwhile; and that
// is over with the failure.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{Rand: rand.New(rand.NewPCG(5, 11)), t: t, kernel: fake.NewKernel()}
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
				t.Errorf("behind for %s, want %s; the last error is %q", got, want, w.engine.Status().LastError)
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

// hanging is a host whose end of a round waits until it is let go on.
type hanging struct {
	dataplane.Host
	goesOn chan struct{}
}

func (h hanging) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	<-h.goesOn
	return h.Host.Finish(ctx, applied)
}

// TestWorking: a loop that hangs is told from one that rests, however long that is.
func TestWorking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel, goesOn := fake.NewKernel(), make(chan struct{})
		e := dataplane.NewEngine(dataplane.Options{
			Dataplane: fake.New(kernel), Host: hanging{fake.NewHost(kernel), goesOn}, Log: slog.New(slog.DiscardHandler),
			MinInterval: time.Hour, ProbeInterval: time.Hour, ResyncInterval: time.Hour,
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = e.Run(ctx) }) // nil by contract
		after := func(d, want time.Duration) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := e.Working(); got != want {
				t.Errorf("it is at work for %s, want %s", got, want)
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

// blind is a dataplane that can't be looked at.
type blind struct{ dataplane.Dataplane }

func (b blind) Unwrap() dataplane.Dataplane { return b.Dataplane }

func (blind) Intact(context.Context) (string, error) {
	return "", errors.New("the kernel does not answer")
}

// TestDriftBesideABlindDataplane checks that damage at the host is mended while the dataplane can't be looked at.
func TestDriftBesideABlindDataplane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
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
			t.Errorf("after 1.5 s: %q, %d repairs of %q", d, w.repaired, w.damage)
		}
		w.stop()
	})
}

// TestRestartWritesNothing checks that an engine that finds everything as wanted changes nothing.
func TestRestartWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		w.change()
		time.Sleep(time.Minute)
		w.stop()
		writes := w.kernel.Writes()
		w.start()
		w.set()
		time.Sleep(time.Minute)
		if n := w.kernel.Writes() - writes; n != 0 || !w.engine.Status().Ready {
			t.Errorf("the restart made %d writes", n)
		}
		w.stop()
	})
}
