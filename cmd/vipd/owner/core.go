package owner

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/failover"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	onhost "vipd/dataplane/failover"
	"vipd/dataplane/failover/heartbeat"
	"vipd/store/etcd/owners"
)

// core is one run of the protocol, from registration to farewell.
type core struct {
	o       Options
	node    *failover.Node
	link    *heartbeat.Link
	store   *owners.Ownership
	worker  *worker
	journal *journal
	etcd    etcdState
	rivals  rivals
	inputs  chan func(failover.Time) []failover.Action
	writes  sync.WaitGroup
	ended   <-chan struct{}
	member  atomic.Pointer[failover.Member]
	// layout is how the host is connected, as the loop knows it.
	layout onhost.Layout
	// another is closed when etcd has another history: then this core ends as if it were killed.
	another chan struct{}
}

// tick is the interval of the loop.
const tick = 10 * time.Millisecond

// newID returns an unused ID.
func newID() failover.ID {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return failover.ID(binary.BigEndian.Uint64(b[:]) | 1)
}

// newCore returns a core whose gate is closed. No VIP is bound.
func newCore(o Options, l onhost.Layout, doubt time.Duration, j *journal) (c *core, err error) {
	c = &core{
		o: o, journal: j, layout: l, rivals: rivals{of: map[netip.Addr]*api.OwnerRival{}}, another: make(chan struct{}),
		inputs: make(chan func(failover.Time) []failover.Action, 1024), etcd: etcdState{log: o.Log},
	}
	gone := wake.New()
	kernel, err := newKernel(onhost.KernelOptions{
		Gate: o.Timing.Gate, Places: l.Places, VIPs: l.VIPs, AnnounceEvery: o.AnnounceEvery, Log: o.Log, Rival: c.rival, Gone: gone.Send, Reached: c.reached,
	})
	if err != nil {
		return nil, err
	}
	if err := kernel.Close(); err != nil {
		return nil, fmt.Errorf("closing the gate: %w", err)
	}
	m := failover.Member{Boot: newID(), At: l.At, Weight: o.Weight, Zone: o.Zone, Version: o.Version}
	if m.Machine, err = machine(); err != nil {
		return nil, err
	}
	c.member.Store(&m)
	c.node = failover.New(failover.Options{
		Name: o.Node, Member: m, Timing: o.Timing, Started: now(), Doubt: doubt, NewID: newID, Wall: func() time.Time { return time.Now().UTC().Truncate(time.Millisecond) },
	})
	if c.link, err = heartbeat.Listen(l.At); err != nil {
		return nil, err
	}
	if c.store, err = owners.NewOwnership(o.Etcd, o.Node); err != nil {
		return nil, err
	}
	c.worker = newWorker(kernel, c.node, o.Timing, c.tell, c.failed, gone)
	c.store.Member = func() failover.Member { return *c.member.Load() }
	c.store.Secrets = c.link.SetKeys
	c.store.Standby = c.standby
	c.store.Report = c.reported
	c.store.Tell = func(changes []failover.RecordChange, revision int64, all bool) {
		c.tell(func(now failover.Time) []failover.Action { return c.node.Stored(now, changes, revision, all) })
	}
	return c, nil
}

// reached processes the answer of a host that must be within reach on an interface.
func (c *core) reached(name string, hosts []netip.Addr) {
	c.tell(func(now failover.Time) []failover.Action {
		if i := slices.Index(c.layout.On, name); i >= 0 && slices.Equal(hosts, c.layout.Reach[name]) { // else it answered earlier questions
			return c.node.Reached(now, i)
		}
		return nil
	})
}

// reported processes the error of the connection to etcd; nil means etcd is reached.
func (c *core) reported(err error) {
	if err != nil {
		c.tell(c.node.Away)
	}
	c.etcd.reported(err)
}

func (c *core) failed(what string, err error) { c.o.Log.Error(what, "err", err) }

// tell queues an input for the loop.
func (c *core) tell(f func(failover.Time) []failover.Action) {
	select {
	case c.inputs <- f:
	case <-c.ended:
	}
}

// change changes this node's record.
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

// farewell is the maximum time to give all VIPs away at the end.
const farewell = 2 * time.Second

// run owns VIPs until ctx ends, and then gives all away.
func (c *core) run(ctx context.Context, started chan<- struct{}) {
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	c.ended, c.worker.done = background.Done(), background.Done()
	close(started)
	var parts sync.WaitGroup
	parts.Go(func() { c.link.Run(background, c.heard) })
	parts.Go(func() {
		if err := c.store.Run(background); err != nil {
			c.journal.note(failover.Note{Kind: failover.NoteLost, Text: "gave up all VIPs, and takes them anew: " + err.Error()})
			close(c.another)
		}
	})
	parts.Go(c.worker.run)
	parts.Go(func() { c.worker.kernel.Run(background) })
	parts.Go(func() {
		runtime.LockOSThread()
		c.worker.gate.run(background.Done())
	})
	c.loop(ctx, background)
	end()
	parts.Wait()
	c.writes.Wait()
	if err := c.worker.kernel.Close(); err != nil {
		c.failed("closing the gate at the end", err)
		return
	}
	if err := c.worker.kernel.End(); err != nil {
		c.failed("leaving the gate", err)
	}
}

func (c *core) heard(on int, m failover.Message) {
	c.tell(func(now failover.Time) []failover.Action { return c.node.Heard(now, on, m) })
}

// loop is the only caller of the node.
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
			if late, lapsed := c.worker.gate.lapsed(at); lapsed {
				c.handle(background, func(now failover.Time) []failover.Action {
					return c.node.Lapsed(now, failover.NotRefreshed, late)
				})
			}
			c.handle(background, c.node.Tick)
			if until := c.node.Deadline(); until > 0 {
				c.journal.observe(until.Since(at))
			}
		}
		if stop == nil && c.node.Left() {
			return
		}
	}
}

// handle passes an input to the node, and carries out the actions.
func (c *core) handle(ctx context.Context, f func(failover.Time) []failover.Action) {
	actions := f(now())
	c.worker.gate.deadline.Store(int64(c.node.Deadline()))
	for _, a := range actions {
		switch a := a.(type) {
		case failover.Send:
			c.link.Send(a.Message, a.On, c.node.Addresses(a.To))
		case failover.Write:
			c.writes.Go(func() {
				outcome, revision, err := c.store.Write(ctx, a)
				c.etcd.wrote(outcome, err)
				c.tell(func(now failover.Time) []failover.Action { return c.node.Wrote(now, a.ID, outcome, revision) })
			})
		case failover.Probe:
			c.writes.Go(func() { c.probe(ctx, a.Addrs) })
		case failover.Register:
			c.writes.Go(func() { c.change(func(m *failover.Member) { m.Boot = a.Boot }) })
		case failover.Note:
			c.journal.note(a)
		default:
			c.worker.queue.add(a)
		}
	}
}

// listen receives heartbeats at the addresses of another layout.
func (c *core) listen(before, after onhost.Layout) error {
	if reflect.DeepEqual(before.At, after.At) && slices.Equal(before.On, after.On) {
		return nil
	}
	done := make(chan error, 1)
	c.tell(func(failover.Time) []failover.Action {
		c.layout.On = after.On
		done <- c.link.Change(after.At)
		return nil
	})
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-c.ended:
	}
	c.change(func(m *failover.Member) { m.At = after.At })
	return nil
}

// policies changes the VIPs of the node. The gate covers new VIPs before, and removed ones until they are unbound.
func (c *core) policies(policies map[netip.Addr]failover.Policy, before, after onhost.Layout) {
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
	c.tell(func(now failover.Time) []failover.Action {
		covers(both) // after what an earlier change still has to cover
		for i, name := range after.On {
			if !slices.Equal(c.layout.Reach[name], after.Reach[name]) {
				c.node.Reaching(now, i)
			}
		}
		c.layout = after
		return c.node.SetPolicies(now, policies)
	})
	c.tell(func(failover.Time) []failover.Action { covers(after.Places); return nil })
}

// vipsOf are the VIPs of policies, sorted.
func vipsOf(policies map[netip.Addr]failover.Policy) []netip.Addr {
	return slices.SortedFunc(maps.Keys(policies), netip.Addr.Compare)
}
