package ipvs

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// inTime runs a test with a fake clock and a frontend that has three backends. The second backend
// has a connection.
func inTime(t *testing.T, f func(p *process, f *balancer.Frontend)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, newKernel(), dir)
		p.observe()
		front := web(key(0), 1, 2, 3)
		p.apply(front)
		p.k.connect(t, front, 2, 1, 0)
		f(p, front)
		if err := p.Close(context.Background(), true); err != nil {
			t.Error(err)
		}
	})
}

// wantWeights checks the weights of f's destinations 1, 2 and 3. A weight of -1 means that the
// destination must not exist.
func (p *process) wantWeights(when string, f *balancer.Frontend, want ...int) {
	p.Helper()
	synctest.Wait()
	states, _ := p.k.Destinations(context.Background(), f.Key)
	for i, weight := range want {
		got := -1
		for _, s := range states {
			if s.Addr == address(f.Key, i+1) {
				got = s.Weight
			}
		}
		if got != weight {
			p.Errorf("%s: weight of destination %d = %d, want %d", when, i+1, got, weight)
		}
	}
}

func TestDrainEndsInTime(t *testing.T) {
	inTime(t, func(p *process, f *balancer.Frontend) {
		p.apply(drained(f, 2, balancer.Removed, time.Now().Add(time.Minute)))
		p.wantWeights("at once", f, 1, 0, 1)
		time.Sleep(time.Minute - time.Second)
		p.wantWeights("before its time", f, 1, 0, 1)
		time.Sleep(time.Second)
		p.wantWeights("after its time", f, 1, -1, 1)
	})
}

func TestDrainEndsWithTheLastConnection(t *testing.T) {
	for _, state := range []balancer.BackendState{balancer.Removed, balancer.Draining, balancer.ZeroWeight, balancer.Down, balancer.Standby} {
		inTime(t, func(p *process, f *balancer.Frontend) {
			p.apply(drained(f, 2, state, time.Time{}))
			time.Sleep(time.Hour)
			p.wantWeights("an hour later", f, 1, 0, 1)
			p.k.connect(p, f, 2, 0, 1)
			time.Sleep(5 * time.Second)
			p.wantWeights("with a connection that closes", f, 1, 0, 1)
			p.k.connect(p, f, 2, 0, 0)
			time.Sleep(2 * time.Second)
			p.wantWeights("without connections", f, 1, -1, 1)
		})
	}
}

// TestReturnKeepsConnections adds an endpoint again while it drains. Only one message may be sent,
// to set the endpoint's weight.
func TestReturnKeepsConnections(t *testing.T) {
	inTime(t, func(p *process, f *balancer.Frontend) {
		p.apply(drained(f, 2, balancer.Removed, time.Now().Add(time.Minute)))
		time.Sleep(30 * time.Second)
		if got := describeOps(p.sent(func() { p.apply(f) })); got != "edit 2 to 1" {
			t.Errorf("adding the endpoint again sent messages %q, want edit 2 to 1", got)
		}
		time.Sleep(time.Hour)
		p.wantWeights("an hour later", f, 1, 1, 1)
	})
}

// TestFrontendLeaves removes a frontend that has connections, with and without a restart. The
// connections must continue until drain_timeout has passed.
func TestFrontendLeaves(t *testing.T) {
	for _, restart := range []bool{false, true} {
		inTime(t, func(p *process, f *balancer.Frontend) {
			p.remove(f)
			p.wantWeights("at once", f, -1, 0, -1)
			if seen := p.observe(); len(seen.Digests) > 0 {
				t.Errorf("Observe: digests = %v, want none because drains end automatically", seen.Digests)
			}
			if restart {
				time.Sleep(10 * time.Second)
				p.restart(true)
				if seen := p.observe(); len(seen.Digests) > 0 {
					t.Errorf("Observe in the next process: digests = %v, want none because drains end automatically", seen.Digests)
				}
				time.Sleep(20 * time.Second)
			} else {
				time.Sleep(30 * time.Second)
				p.remove(f) // removing it again must have no effect
			}
			time.Sleep(29 * time.Second)
			if states, err := p.k.Destinations(context.Background(), f.Key); err != nil || len(states) == 0 {
				t.Errorf("destinations before the end of the drain = %v, %v; want at least one", states, err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if got := p.k.text(t, every); got != "" {
				t.Errorf("virtual servers after the drain =\n%s\nwant none", got)
			}
		})
	}
}

// TestFrontendReturns removes a frontend, and applies another frontend with the same key while it
// drains. The old connections must still be closed when the drain ends.
func TestFrontendReturns(t *testing.T) {
	inTime(t, func(p *process, f *balancer.Frontend) {
		p.remove(f)
		time.Sleep(20 * time.Second)
		g := web(f.Key, 3, 4)
		p.apply(g)
		p.wantWeights("when another came", g, -1, 0, 1)
		time.Sleep(39 * time.Second)
		p.wantWeights("before its time", g, -1, 0, 1)
		time.Sleep(time.Second)
		p.wantWeights("after its time", g, -1, -1, 1)
	})
}

// TestGoneMeanwhile removes an endpoint from the configuration while vipd is not running. After the
// next start, this endpoint must drain for its full drain_timeout.
func TestGoneMeanwhile(t *testing.T) {
	inTime(t, func(p *process, f *balancer.Frontend) {
		p.restart(true)
		p.observe()
		g := web(f.Key, 1, 3)
		p.apply(g)
		p.wantWeights("at once", f, 1, 0, 1)
		time.Sleep(59 * time.Second)
		p.wantWeights("before its time", f, 1, 0, 1)
		time.Sleep(time.Second)
		p.wantWeights("after its time", f, 1, -1, 1)
	})
}

// TestOrphanLeaves removes a frontend from the configuration while vipd is not running. After the
// next start, the frontend must drain for its own drain_timeout.
func TestOrphanLeaves(t *testing.T) {
	inTime(t, func(p *process, f *balancer.Frontend) {
		p.restart(true)
		if seen := p.observe(); len(seen.Digests) != 1 {
			t.Errorf("Observe in the next process: digests = %v, want a digest of %s", seen.Digests, f.Key)
		}
		if err := p.Apply(context.Background(), []dataplane.Change{{Key: f.Key}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		p.wantWeights("before its time", f, -1, 0, -1)
		time.Sleep(time.Second)
		p.wantWeights("after its time", f, -1, -1, -1)
	})
}

// TestManyLeave removes many frontends in one batch. vipd must detect that drains have ended by
// reading the whole table, and must delete each virtual server with a single message.
func TestManyLeave(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, newKernel(), dir)
		p.observe()
		var frontends []*balancer.Frontend
		var removals []dataplane.Change
		for n := range 3 * fewDrains {
			f := web(balancer.Key{Addr: key(0).Addr, Port: balancer.PortRange(1 + n), Proto: balancer.TCP}, 1, 2)
			frontends = append(frontends, f)
			removals = append(removals, dataplane.Change{Key: f.Key, Old: f})
		}
		p.apply(frontends...)
		for _, f := range frontends {
			p.k.connect(t, f, 1, 1, 0)
		}
		p.k.omitted = map[balancer.Key]bool{frontends[7].Key: true, frontends[8].Key: true}
		if err := p.Apply(context.Background(), removals); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		ops := p.sent(func() {
			p.k.connect(t, frontends[7], 1, 0, 0)
			time.Sleep(2 * time.Second)
			synctest.Wait()
		})
		if len(ops) != 1 || ops[0].Verb != ipvsnl.DeleteService || ops[0].Service.Key != frontends[7].Key {
			t.Errorf("after the last connection of %s closed: messages = %v, want one deletion", frontends[7].Key, ops)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := p.k.text(t, every); got != "" {
			t.Errorf("virtual servers after the drains =\n%s\nwant none", got)
		}
		if err := p.Close(context.Background(), true); err != nil {
			t.Error(err)
		}
	})
}

// TestDrainsAreLookedAtInTurn changes some frontends continuously while many others drain. The
// whole table must still be read once a second.
func TestDrainsAreLookedAtInTurn(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, newKernel(), dir)
		p.observe()
		for n := range 2 * fewDrains {
			f := web(balancer.Key{Addr: key(0).Addr, Port: balancer.PortRange(1 + n), Proto: balancer.TCP}, 1, 2)
			p.apply(f)
			p.k.connect(t, f, 1, 1, 0)
			p.remove(f)
		}
		time.Sleep(5 * time.Second)
		before := p.k.tables.Load()
		for n := range 30 {
			p.apply(web(key(1), 1+n%2))
			time.Sleep(100 * time.Millisecond)
		}
		if read := p.k.tables.Load() - before; read < 2 || read > 4 {
			t.Errorf("reads of the table during 3 s of changes = %d, want one per second", read)
		}
		if err := p.Close(context.Background(), true); err != nil {
			t.Error(err)
		}
	})
}

// TestUDPGoesAtOnce removes an endpoint that has UDP flows, and then the whole frontend. vipd must
// delete the kernel's objects immediately.
func TestUDPGoesAtOnce(t *testing.T) {
	p := start(t, newKernel(), t.TempDir())
	p.observe()
	f := web(key(1), 1, 2, 3)
	p.apply(f)
	p.k.connect(t, f, 2, 0, 5)
	if got := describeOps(p.sent(func() { p.apply(web(f.Key, 1, 3)) })); got != "delete 2" {
		t.Errorf("removing an endpoint sent messages %q, want delete 2", got)
	}
	p.k.connect(t, f, 1, 0, 5)
	if got := describeOps(p.sent(func() { p.remove(f) })); got != "delete all" {
		t.Errorf("removing the frontend sent messages %q, want delete all", got)
	}
}

// TestDestinationHashFailsOver drains an endpoint of a frontend with the scheduler dh. Until the
// drain ends, the virtual server must use the scheduler fo, because dh would refuse the draining
// endpoint's clients.
func TestDestinationHashFailsOver(t *testing.T) {
	inTime(t, func(p *process, f *balancer.Frontend) {
		g := *f
		g.Scheduler = balancer.DestinationHash
		p.apply(&g)
		if got := describeOps(p.sent(func() { p.apply(drained(&g, 2, balancer.Draining, time.Time{})) })); got != "scheduler fo, edit 2 to 0" {
			t.Errorf("starting a drain sent messages %q, want scheduler fo, edit 2 to 0", got)
		}
		got := describeOps(p.sent(func() {
			p.k.connect(p, f, 2, 0, 0)
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}))
		if got != "delete 2, scheduler dh" {
			t.Errorf("ending the drain sent messages %q, want delete 2, scheduler dh", got)
		}
	})
}

// TestInterruptedEnd kills a process that has recorded a removal in the ledger, but has not changed
// the kernel yet. The next process must report the frontend as damaged, and must complete the
// removal.
func TestInterruptedEnd(t *testing.T) {
	p := start(t, newKernel(), t.TempDir())
	p.observe()
	f := web(key(0), 1, 2)
	p.apply(f)
	p.k.connect(t, f, 1, 3, 0)
	p.k.connect(t, f, 2, 3, 0)
	p.remove(f)
	ended := p.k.text(t, every)
	for _, i := range []int{1, 2} {
		back := ipvsnl.Op{Verb: ipvsnl.EditDestination, Service: ipvsnl.Service{Key: f.Key}, Destination: ipvsnl.Destination{Addr: address(f.Key, i), Forward: balancer.NATForward, Weight: 1}}
		if errs := p.k.Do(context.Background(), []ipvsnl.Op{back}); errs != nil {
			t.Fatal(errs)
		}
	}
	p.restart(true)
	if d, there := p.observe().Digests[f.Key]; !there || d != 0 {
		t.Errorf("Observe in the next process: frontend exists = %v, digest = %v; want it reported as damaged", there, d)
	}
	p.remove(f)
	if got := p.k.text(t, every); got != ended {
		t.Errorf("kernel's state after the repeated removal =\n%swant\n%s", got, ended)
	}
	if reason, err := p.Intact(context.Background()); reason != "" || err != nil {
		t.Errorf("Intact = %q, %v; want no reason", reason, err)
	}
}
