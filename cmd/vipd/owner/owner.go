package owner

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/failover"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	"vipd/dataplane/failover/heartbeat"
	"vipd/store/etcd"
)

// Options are what an owner is given.
type Options struct {
	Node, Zone, Version string
	Weight              int
	Timing              failover.Timing
	Etcd                etcd.Config
	// Interfaces and Listen narrow where VIPs and heartbeats are.
	Interfaces []string
	Listen     []netip.Addr
	// Reach are hosts that must answer on their device; empty: the default gateways there.
	Reach  []netip.Addr
	Kernel Maker
	// Hindered is what the process may not have of what it needs to be in time.
	Hindered []string
	Log      *slog.Logger
}

// core is one run.
type core struct {
	o      Options
	on     []string                // the interface of each address where heartbeats are heard; the loop's
	reach  map[string][]netip.Addr // the hosts that are to be within reach on each interface; the loop's
	node   *failover.Node
	link   *heartbeat.Link
	store  *etcd.Ownership
	work   *work
	inputs chan func(failover.Time) []failover.Action
	member atomic.Pointer[failover.Member]
	ended  <-chan struct{}
	// another is closed when etcd has another history: then this one ends as if it were killed.
	another chan struct{}
	writes  sync.WaitGroup
	notes   func(failover.Note)
	left    func(time.Duration) // hears how long the session is confirmed from now
	away    atomic.Pointer[outage]
	// refused is the last write that etcd has refused, unless one went through since.
	refused atomic.Pointer[refusal]
	rivals  rivals
	// unplaced are VIPs that no device has a network for.
	unplaced atomic.Pointer[[]netip.Addr]
}

// outage is why etcd is not in reach, and since when; nil means it is.
type outage struct {
	why   error
	since time.Time
}

// refusal is why etcd did not write, though it is in reach: it is full, or the user may not.
type refusal struct {
	why error
	at  time.Time
}

// tick is how often the loop looks what is due.
const tick = 10 * time.Millisecond

// newID returns an unused ID.
func newID() failover.ID {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return failover.ID(binary.BigEndian.Uint64(b[:]) | 1)
}

// newCore makes one: the gate is closed and no VIP bound when it returns.
func newCore(o Options, p places, doubt time.Duration) (c *core, err error) {
	c = &core{
		o: o, on: p.on, reach: p.reach, rivals: rivals{of: map[netip.Addr]*api.OwnerRival{}}, another: make(chan struct{}),
		inputs: make(chan func(failover.Time) []failover.Action, 1024),
	}
	gone := wake.New()
	kernel, err := o.Kernel(p, Hears{c.rival, gone.Send, func(name string, hosts []netip.Addr) {
		c.tell(func(now failover.Time) []failover.Action {
			if i := slices.Index(c.on, name); i >= 0 && slices.Equal(hosts, c.reach[name]) { // else it answered the questions before
				return c.node.Reached(now, i)
			}
			return nil
		})
	}})
	if err != nil {
		return nil, err
	}
	if err := kernel.Close(); err != nil {
		return nil, fmt.Errorf("closing the gate: %w", err)
	}
	m := failover.Member{Boot: newID(), At: p.at, Weight: o.Weight, Zone: o.Zone, Version: o.Version}
	if m.Machine, err = machine(); err != nil {
		return nil, err
	}
	c.member.Store(&m)
	c.node = failover.New(failover.Options{
		Name: o.Node, Member: m, Timing: o.Timing, Started: now(), Doubt: doubt, NewID: newID, Wall: func() time.Time { return time.Now().UTC().Truncate(time.Millisecond) },
	})
	if c.link, err = heartbeat.Listen(p.at); err != nil {
		return nil, err
	}
	if c.store, err = etcd.NewOwnership(o.Etcd, o.Node); err != nil {
		return nil, err
	}
	c.work = &work{kernel: kernel, timing: o.Timing, queue: queue{wake: wake.New()}, tell: c.tell, node: c.node, failed: c.failed, gone: gone}
	c.store.Member = func() failover.Member { return *c.member.Load() }
	c.store.Secrets = c.link.SetKeys
	c.store.Standby = c.standby
	c.store.Report = c.reported
	c.store.Tell = func(changes []failover.Change, revision int64, all bool) {
		c.tell(func(now failover.Time) []failover.Action { return c.node.Stored(now, changes, revision, all) })
	}
	return c, nil
}

// reported takes in what is in the way of etcd; nil means nothing.
func (c *core) reported(err error) {
	before := c.away.Load()
	if err != nil {
		c.tell(c.node.Away)
	}
	switch {
	case err == nil:
		c.away.Store(nil)
	case before == nil:
		c.away.Store(&outage{err, time.Now()})
		c.o.Log.Warn("no way to etcd: nothing can move", "err", err)
	default:
		c.away.Store(&outage{err, before.since})
	}
}

func (c *core) failed(what string, err error) { c.o.Log.Error(what, "err", err) }

// tell hands something to the loop.
func (c *core) tell(f func(failover.Time) []failover.Action) {
	select {
	case c.inputs <- f:
	case <-c.ended:
	}
}

// change changes what others read of this node.
func (c *core) change(f func(*failover.Member)) {
	for {
		before := c.member.Load()
		m := *before
		if f(&m); c.member.CompareAndSwap(before, &m) {
			break
		}
	}
	c.store.MemberChanged()
	c.tell(func(now failover.Time) []failover.Action { return c.node.SetMember(now, *c.member.Load()) })
}

func (c *core) standby(on bool, by failover.Request) {
	if c.member.Load().Standby != on {
		c.change(func(m *failover.Member) { m.Standby, m.StandbyBy = on, by })
	}
}

// farewell bounds how long giving everything away at the end may take.
const farewell = 2 * time.Second

// run owns until ctx ends, and then gives everything away.
func (c *core) run(ctx context.Context, started chan<- struct{}) {
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	c.ended, c.work.done = background.Done(), background.Done()
	close(started)
	var parts sync.WaitGroup
	parts.Go(func() { c.link.Run(background, c.heard) })
	parts.Go(func() {
		if err := c.store.Run(background); err != nil {
			c.notes(failover.Note{Kind: failover.NoteLost, Text: "gave up all VIPs, and takes them anew: " + err.Error()})
			close(c.another)
		}
	})
	parts.Go(c.work.run)
	parts.Go(func() { c.work.kernel.Run(background) })
	parts.Go(func() {
		runtime.LockOSThread()
		c.work.refresh()
	})
	c.loop(ctx, background)
	end()
	parts.Wait()
	c.writes.Wait()
	if err := c.work.kernel.Close(); err != nil {
		c.failed("closing the gate at the end", err)
		return
	}
	if err := c.work.kernel.End(); err != nil {
		c.failed("leaving the gate", err)
	}
}

func (c *core) heard(on int, m failover.Message) {
	c.tell(func(now failover.Time) []failover.Action { return c.node.Heard(now, on, m) })
}

// loop is the only one who calls the node.
func (c *core) loop(ctx, background context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	stop := ctx.Done()
	var limit <-chan time.Time
	for {
		select {
		case <-stop:
			stop, limit = nil, time.After(farewell)
			c.handle(background, c.node.Stop)
		case <-limit:
			return
		case <-c.another:
			return
		case f := <-c.inputs:
			c.handle(background, f)
		case <-ticker.C:
			at := now()
			if late, yes := c.work.lapsed(at); yes {
				c.handle(background, func(now failover.Time) []failover.Action {
					return c.node.Lapsed(now, failover.NotRefreshed, late)
				})
			}
			c.handle(background, c.node.Tick)
			if until := c.node.Deadline(); until > 0 {
				c.left(until.Since(at))
			}
		}
		if stop == nil && c.node.Left() {
			return
		}
	}
}

// handle has the node take something in, and carries out what follows.
func (c *core) handle(ctx context.Context, f func(failover.Time) []failover.Action) {
	actions := f(now())
	c.work.deadline.Store(int64(c.node.Deadline()))
	for _, a := range actions {
		switch a := a.(type) {
		case failover.Send:
			c.link.Send(a.Message, a.On, c.node.Addresses(a.To))
		case failover.Write:
			c.writes.Go(func() {
				outcome, revision, err := c.store.Write(ctx, a)
				c.wrote(outcome, err)
				c.tell(func(now failover.Time) []failover.Action { return c.node.Wrote(now, a.ID, outcome, revision) })
			})
		case failover.Probe:
			c.writes.Go(func() { c.probe(ctx, a.Addrs) })
		case failover.Register:
			c.writes.Go(func() { c.change(func(m *failover.Member) { m.Boot = a.Boot }) })
		case failover.Note:
			c.notes(a)
		default:
			c.work.queue.add(a)
		}
	}
}

// wrote takes in how a write ended.
func (c *core) wrote(outcome failover.Outcome, err error) {
	switch {
	case err == nil:
		c.refused.Store(nil)
	case outcome == failover.Unsent && c.away.Load() == nil:
		if before := c.refused.Swap(&refusal{err, time.Now()}); before == nil {
			c.o.Log.Error("etcd takes no writes: VIPs stay where they are", "err", err)
		}
	default:
		c.o.Log.Debug("writing to etcd", "err", err)
	}
}

// vipsOf are the VIPs of policies, sorted.
func vipsOf(policies map[netip.Addr]failover.Policy) []netip.Addr {
	return slices.SortedFunc(maps.Keys(policies), netip.Addr.Compare)
}
