package dataplane_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
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

// pair is a fixture with a second kernel. The engine uses the fixture's kernel, until a switch
// makes it use other.
type pair struct {
	*fixture
	other *fake.Kernel
	moved int
}

// openHost is a host for tests of switches. It fails the test if any served frontend is not passed
// to Finish.
type openHost struct {
	*fake.Host
	w *pair
}

func (h *openHost) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	for k := range h.w.kernel.Frontends() {
		if !applied.Has(k) {
			h.w.t.Errorf("Finish was called without the served frontend at %s, want it passed to Finish", k)
		}
	}
	return h.Host.Finish(ctx, applied)
}

func newPair(t *testing.T, seed uint64) *pair {
	p := &pair{fixture: &fixture{Rand: rand.New(rand.NewPCG(seed, 12)), t: t, kernel: fake.NewKernel()}}
	p.other = p.kernel.Beside()
	p.startOver(&openHost{fake.NewHost(p.kernel), p})
	return p
}

// swap requests a switch to the other dataplane. If back is true, it then requests a switch back to
// the current dataplane.
func (p *pair) swap(back bool) {
	p.desired.Revision.Store++
	from, to, asked := p.kernel, p.other, p.desired
	next := fake.New(to)
	p.engine.Switch(next, asked, func() {
		p.moved++
		there := to.Frontends()
		for k := range from.Frontends() {
			if want, _ := p.engine.Wanted(); there[k] == 0 && want.Frontends.Has(k) && asked.Frontends.Has(k) {
				p.t.Errorf("the next dataplane does not serve the frontend at %s", k)
			}
		}
		p.kernel, p.other = to, from
		if err := fake.New(from).Close(context.Background(), false); err != nil {
			p.t.Error(err)
		}
	})
	if back {
		p.pause(time.Duration(p.IntN(200)) * time.Millisecond)
		if to != p.kernel { // the switch is not complete yet
			p.engine.Switch(fake.New(from), asked, func() {
				if err := next.Close(context.Background(), false); err != nil {
					p.t.Error(err)
				}
			})
		}
	}
}

// pause waits for d of virtual time, and then until all goroutines are idle.
func (p *pair) pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestSwitchConverges makes random changes, failures and switches. Each served frontend must remain
// until the next dataplane serves it. At the end, one dataplane must have the desired state, and
// the other must be empty.
func TestSwitchConverges(t *testing.T) {
	moved := 0
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, seed)
			for range 20 {
				switch p.IntN(5) {
				case 0, 1, 2:
					p.change()
				case 3:
					p.swap(p.IntN(2) == 0)
				case 4:
					p.other.Fail(fake.Faults{Share: p.Float64()}, seed)
				}
				p.pause(time.Duration(p.IntN(3000)) * time.Millisecond)
				p.other.Fail(fake.Faults{}, seed)
			}
			p.change()
			p.pause(3 * time.Minute)
			if d := p.difference(); d != "" {
				t.Errorf("seed %d: difference = %q, want none", seed, d)
			}
			if left := p.other.Frontends(); len(left) > 0 {
				t.Errorf("seed %d: previous dataplane's frontends = %v, want none", seed, left)
			}
			s := p.engine.Status()
			if !s.Ready || s.Moving || len(s.Failing) > 0 || s.Applied.Store != p.desired.Revision.Store || s.Repairs != 0 {
				t.Errorf("seed %d: status = %+v, want ready at the last revision, without failures and repairs", seed, s)
			}
			moved += p.moved
			p.stop()
		})
	}
	if moved < 300 {
		t.Errorf("completed switches = %d, want at least 300", moved)
	}
}

// TestSwitchToFailingDataplane switches to a dataplane whose Apply always fails. The switch must
// not complete, and the previous dataplane must keep its frontends.
func TestSwitchToFailingDataplane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		nothing := map[balancer.Key]bool{}
		for i := range 100 {
			k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Port: 80, Proto: balancer.TCP}
			p.desired.Frontends = p.desired.Frontends.Set(k, p.frontend(k))
			p.desired.Addresses = p.desired.Addresses.Set(k.Addr, 1)
			nothing[k] = true
		}
		p.set()
		p.pause(time.Second)
		p.other.Fail(fake.Faults{Keys: nothing}, 1)
		served := len(p.kernel.Frontends())
		p.swap(false)
		p.pause(10 * time.Minute)
		if s := p.engine.Status(); p.moved > 0 || !s.Moving || len(p.kernel.Frontends()) != served {
			t.Errorf("completed switches = %d, status = %+v, served frontends = %d; want %d served frontends and a switch in progress", p.moved, s, len(p.kernel.Frontends()), served)
		}
		p.stop()
	})
}

// recorder is a dataplane that records which frontends it had to remove.
type recorder struct {
	dataplane.Dataplane
	removed []*balancer.Frontend
}

func (r *recorder) Unwrap() dataplane.Dataplane { return r.Dataplane }

func (r *recorder) Apply(ctx context.Context, batch []dataplane.Change) error {
	for _, c := range batch {
		if c.New == nil {
			r.removed = append(r.removed, c.Old)
		}
	}
	return r.Dataplane.Apply(ctx, batch)
}

// TestSwitchRemovedFrontend removes a frontend together with a switch, or before a switch. The next
// dataplane must remove the frontend, with the remaining drain time.
func TestSwitchRemovedFrontend(t *testing.T) {
	for name, test := range map[string]struct {
		before time.Duration // time from the removal to the switch
		left   time.Duration // expected remaining drain time
	}{"with it": {0, 30 * time.Second}, "before": {20 * time.Second, 10 * time.Second}, "long before": {40 * time.Second, 0}} {
		t.Run(name, func(t *testing.T) { testSwitchRemoved(t, test.before, test.left) })
	}
}

func testSwitchRemoved(t *testing.T, before, left time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		kernel := fake.NewKernel()
		e := dataplane.NewEngine(dataplane.Options{Dataplane: fake.New(kernel), Host: fake.NewHost(kernel), Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		goes := &balancer.Frontend{Key: balancer.Key{Addr: netip.MustParseAddr("10.1.0.1"), Port: 80, Proto: balancer.TCP}, Service: "web"}
		goes.DrainTimeout = 30 * time.Second
		var want balancer.Desired
		want.Frontends, want.Addresses = want.Frontends.Set(goes.Key, goes), want.Addresses.Set(goes.Addr, 1)
		e.Set(want)
		time.Sleep(time.Second)
		if before > 0 {
			e.Set(balancer.Desired{})
			time.Sleep(before)
		}
		next, moved := &recorder{Dataplane: fake.New(kernel.Beside())}, make(chan bool, 1)
		e.Switch(next, balancer.Desired{}, func() { moved <- true })
		<-moved
		var drain time.Duration
		for _, f := range next.removed {
			drain += f.DrainTimeout
		}
		if drain != left || len(next.removed) > 1 {
			t.Errorf("the next dataplane removed %v with a drain time of %s, want %s", next.removed, drain, left)
		}
		cancel()
		<-ended
	})
}

// TestSwitchOneBadFrontend switches to a dataplane that can't apply one of the frontends. After
// several attempts, the switch must complete anyway.
func TestSwitchOneBadFrontend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, 1)
		for p.desired.Frontends.Len() < 3 {
			p.change()
		}
		p.pause(time.Second)
		bad, _, _ := first(p.desired)
		p.other.Fail(fake.Faults{Keys: map[balancer.Key]bool{bad: true}, ByKey: true}, 1)
		started, took := time.Now(), time.Duration(0)
		p.engine.Switch(fake.New(p.other), p.desired, func() { took = time.Since(started) })
		p.pause(time.Minute)
		if took < 750*time.Millisecond || took > 10*time.Second { // the sum of two backoffs, half of each of which is random
			t.Errorf("duration of the switch = %v, want the duration of two backoffs", took)
		}
		if n := len(p.other.Frontends()); n != p.desired.Frontends.Len()-1 {
			t.Errorf("moved frontends = %d of %d, want all except one", n, p.desired.Frontends.Len())
		}
		p.stop()
	})
}

// first returns the first frontend in d and its key. If d has no frontends, it returns false.
func first(d balancer.Desired) (balancer.Key, *balancer.Frontend, bool) {
	for k, f := range d.Frontends.All() {
		return k, f, true
	}
	return balancer.Key{}, nil, false
}

var _ dataplane.Host = (*openHost)(nil)

// choosy is a dataplane that counts each frontend that it has to apply for another dataplane's
// service.
type choosy struct {
	dataplane.Dataplane
	name  balancer.Name
	wrong *atomic.Int32
}

func (c choosy) Unwrap() dataplane.Dataplane { return c.Dataplane }

func (c choosy) Apply(_ context.Context, batch []dataplane.Change) error {
	for _, change := range batch {
		if change.New != nil && change.New.Service != c.name {
			c.wrong.Add(1)
		}
	}
	return nil
}

// TestSwitchWhileBusy makes an engine switch many times while it is busy. No dataplane may get a
// state that was compiled for another dataplane.
func TestSwitchWhileBusy(t *testing.T) {
	var wrong atomic.Int32
	compiled := func(i int) (choosy, balancer.Desired) {
		c := choosy{fake.New(fake.NewKernel()), balancer.Name(fmt.Sprint("of-", i)), &wrong}
		k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 0, 0, 1}), Port: 80, Proto: balancer.TCP}
		return c, balancer.Desired{Frontends: snap.Map[balancer.Key, *balancer.Frontend]{}.Set(k, &balancer.Frontend{Key: k, Service: c.name})}
	}
	dp, desired := compiled(0)
	engine := dataplane.NewEngine(dataplane.Options{
		Dataplane: dp, Host: fake.NewHost(fake.NewKernel()), Log: slog.New(slog.DiscardHandler), MinInterval: time.Nanosecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx) }()
	engine.Set(desired)
	for i := range 30000 {
		for range i % 7 {
			engine.Set(desired) // this keeps the engine busy
		}
		moved := make(chan bool)
		dp, desired = compiled(i + 1)
		engine.Switch(dp, desired, func() { close(moved) })
		select {
		case <-moved:
		case <-time.After(wait.Patience):
			t.Fatalf("switch %d is not complete: status = %+v", i, engine.Status())
		}
	}
	cancel()
	if err := <-ended; err != nil || wrong.Load() > 0 {
		t.Errorf("frontends from the wrong dataplane = %d, want 0; %v", wrong.Load(), err)
	}
}
