package owner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	onhost "vipd/dataplane/failover"
)

// core runs a decider from its registration until it has released all VIPs.
type core struct {
	o       Options
	decider decider
	worker  *worker
	journal *journal
	rivals  rivals
	inputs  chan input
	probes  sync.WaitGroup
	ended   chan struct{} // closed when the loop has returned
	// layout describes the host's networks as of the last report that the loop has handled.
	layout onhost.Layout
	// another is closed when etcd no longer continues the same history, for example after a
	// restore. This core then stops without releasing VIPs, as if the process were killed.
	another chan struct{}
}

// tick is the interval at which the loop runs.
const tick = 10 * time.Millisecond

// newCore returns a core with a closed gate and without VIPs. The core calls the function links
// when an interface may have changed.
func newCore(o Options, l onhost.Layout, doubt time.Duration, j *journal, links func()) (c *core, err error) {
	c = &core{
		o: o, journal: j, layout: l, rivals: rivals{byVRRP: o.VRRP != nil, byVIP: map[netip.Addr]*api.OwnerRival{}, over: map[netip.Addr]bool{}}, another: make(chan struct{}),
		ended: make(chan struct{}), inputs: make(chan input, 1024),
	}
	gone := wake.New()
	kernel, err := newKernel(onhost.KernelOptions{
		Gate: o.gate(), Places: l.Places, VIPs: l.VIPs, AnnounceEvery: o.AnnounceEvery, Log: o.Log, Rival: c.rival, Lost: gone.Send, Links: links, Reached: c.reached,
	})
	if err != nil {
		return nil, err
	}
	if err := kernel.Close(); err != nil {
		return nil, fmt.Errorf("closing the gate: %w", err)
	}
	if o.VRRP != nil {
		c.decider = newByVRRP(c)
	} else if c.decider, err = newByEtcd(c, doubt); err != nil {
		return nil, err
	}
	c.worker = newWorker(kernel, c.decider, o.gate(), c.queueInput, c.failed, gone)
	return c, nil
}

// reached handles an answer from one of the hosts that must be within reach. name is the interface
// on which it arrived.
func (c *core) reached(name string, hosts []netip.Addr) {
	c.queueInput(func(now local.Time) []local.Action {
		if i := slices.Index(c.layout.On, name); i >= 0 && slices.Equal(hosts, c.layout.Reach[name]) { // an answer from any other host belongs to an earlier request
			return c.decider.Reached(now, i)
		}
		return nil
	})
}

func (c *core) failed(what string, err error) { c.o.Log.Error(what, "err", err) }

// queueInput queues an input for the loop.
func (c *core) queueInput(f input) {
	select {
	case c.inputs <- f:
	case <-c.ended:
	}
}

// releaseTimeout is how long releasing all VIPs may take when the core stops.
const releaseTimeout = 2 * time.Second

// run owns VIPs until ctx is done, and then releases all of them.
func (c *core) run(ctx context.Context, started chan<- struct{}) {
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	c.worker.done = background.Done()
	close(started)
	var parts sync.WaitGroup
	parts.Go(func() { c.decider.run(background) })
	parts.Go(c.worker.run)
	if c.rivals.byVRRP {
		parts.Go(func() { c.askRivals(background) })
	}
	parts.Go(func() { c.worker.kernel.Run(background) })
	parts.Go(func() {
		runtime.LockOSThread()
		c.worker.gate.run(background.Done())
	})
	c.loop(ctx, background)
	close(c.ended)
	end()
	parts.Wait()
	c.probes.Wait()
	if err := c.worker.kernel.Close(); err != nil {
		c.failed("the gate can't be closed at shutdown", err)
		return
	}
	if err := c.worker.kernel.End(); err != nil {
		c.failed("the gate's sockets can't be closed", err)
	}
}

// loop runs the decider. Only the loop's goroutine calls the decider's exported methods.
func (c *core) loop(ctx, background context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	stop := ctx.Done()
	var limit <-chan time.Time
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	for {
		if next := c.decider.Next(); next > 0 {
			due.Reset(next.Since(now()))
		}
		select {
		case <-due.C:
			c.lapse(background)
			c.handle(background, c.decider.Tick)
		case <-stop:
			stop, limit = nil, time.After(releaseTimeout)
			c.handle(background, c.decider.Stop)
		case <-limit:
			return
		case <-c.another:
			return
		case f := <-c.inputs:
			c.lapse(background) // must come before inputs that arrived while the process was stopped
			c.handle(background, f)
		case <-ticker.C:
			at := c.lapse(background)
			c.handle(background, c.decider.Tick)
			if until := c.decider.Deadline(); until > 0 {
				c.journal.observe(until.Since(at))
			}
		}
		if stop == nil && c.decider.Left() {
			return
		}
	}
}

// lapse reports to the decider if the gate may have closed because of its timeout. It returns the
// current time.
func (c *core) lapse(ctx context.Context) (at local.Time) {
	at = now()
	if late, lapsed := c.worker.gate.lapsed(at); lapsed {
		c.handle(ctx, func(now local.Time) []local.Action { return c.decider.Lapsed(now, local.NotRefreshed, late) })
	}
	return at
}

// handle passes an input to the decider and performs the resulting actions, which may result in
// another input.
func (c *core) handle(ctx context.Context, f input) {
	var next []input
	actions := f(now())
	c.worker.gate.deadline.Store(int64(c.decider.Deadline()))
	for _, a := range actions {
		switch a := a.(type) {
		case local.Probe:
			c.probes.Go(func() { c.probe(ctx, a) })
		case local.Note:
			c.journal.note(a)
		case local.CloseGate, local.OpenGate, local.Bind, local.Unbind:
			c.worker.queue.add(a)
			c.rivals.left(a)
		default:
			if f := c.decider.Do(ctx, a); f != nil {
				next = append(next, f)
			}
		}
	}
	for _, f := range next {
		c.handle(ctx, f)
	}
}

// report passes vipd's report to the decider. The gate covers new VIPs before they are bound, and
// covers removed VIPs until they are unbound.
func (c *core) report(report *api.OwnerReport, before, after onhost.Layout) {
	moved := !maps.Equal(before.Devices, after.Devices) || !slices.Equal(before.On, after.On) || !maps.EqualFunc(before.Reach, after.Reach, slices.Equal)
	both := after.Places
	both.Devices = maps.Clone(after.Devices)
	for v, device := range before.Devices {
		both.Devices[v] = cmp.Or(both.Devices[v], device)
	}
	covers := func(p onhost.Places) {
		if moved {
			c.worker.queue.add(cover{p})
		}
	}
	c.queueInput(func(now local.Time) []local.Action {
		covers(both) // must come after earlier changes, which may cover other VIPs
		var actions []local.Action
		for i, name := range after.On {
			if !slices.Equal(c.layout.Reach[name], after.Reach[name]) {
				actions = append(actions, c.decider.Reaching(now, i)...)
			}
		}
		c.layout = after
		return append(actions, c.decider.SetReport(now, report, after)...)
	})
	c.queueInput(func(local.Time) []local.Action { covers(after.Places); return nil })
}

func vipsOf(report *api.OwnerReport) []netip.Addr {
	return slices.SortedFunc(maps.Keys(report.VIPs), netip.Addr.Compare)
}
