package model

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/checks"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/cmd/vipd/daemon/internal/outlier"
	"vipd/dataplane"
	"vipd/store"
	"vipd/store/statedir"
)

// Model owns everything that is compiled. Its loop is the only one that touches the compiler, the memory and the local
// overrides; what it has made is published as a State, which never changes. All methods may be called by any goroutine.
type Model struct {
	*Published
	o     Options
	moved atomic.Bool // the host's addresses may have changed
	ask   chan request

	mu     sync.Mutex // guards the rest of this block
	latest *store.Snapshot
	seen   time.Time                     // when the oldest snapshot that is not compiled yet came
	works  time.Time                     // since when the loop is at work; zero means that it waits
	next   *adoption                     // a dataplane that is to take over
	freed  map[netip.Addr]balancer.Drain // VIPs to be given up before their time

	// The rest belongs to the loop.
	carrier   dataplane.Dataplane // for which it is compiled
	compiler  balancer.Compiler
	local     Overrides
	proposed  *proposal // what is to be local; nil means nothing is
	files     files
	clock     clock        // how far the wall clock was set
	started   time.Time    // after what an earlier run kept was read, which may wait for the disk
	everRead  bool         // the store could be read at least once
	addresses []netip.Addr // the host's own
	networked []netip.Addr // those of them with a network
	// nodes are what the fleet's nodes publish, and of their addresses without this node's.
	nodes snap.Map[balancer.NodeName, *balancer.Node]
	of    snap.Map[netip.Addr, balancer.NodeName]
}

// Edit changes the local overrides and returns its events.
type Edit func(*State, Overrides) (Overrides, []events.Event, error)

// request asks the loop to change the local overrides; a change that is nil changes nothing.
type request struct {
	change Edit
	answer chan error
	err    error // the answer, where change is nil
}

// proposal is a change of the local overrides that is made once it is on disk, which kept tells.
type proposal struct {
	request
	local    Overrides
	recorded []events.Event
	kept     <-chan error
}

// Options are what a Model is made of.
type Options struct {
	// Published is where states are published, Configuration what the daemon's own part of the configuration says.
	Published     *Published
	Configuration *liveconfig.Config
	// StateDir keeps overrides and drains for the next run.
	StateDir *statedir.Dir
	Events   *events.History
	// Carrier is the dataplane that is compiled for until Adopt, and Engine gets what is compiled.
	Carrier  dataplane.Dataplane
	Engine   *dataplane.Engine
	Checks   *checks.Checks
	Outliers *outlier.Detector
	// LocalAddresses lists the host's own addresses, and those of them with a network on their device.
	LocalAddresses func() (own, networked []netip.Addr, err error)
	// Reserved lists what services from etcd may not claim.
	Reserved func() []balancer.Reserved
	// Patient: a store that could not be read yet is waited for without end.
	Patient bool
	// Awaiting is told of each state that says only why the store could not be read yet. It is called by the model's loop.
	Awaiting func(s *State, now time.Time)
	// Traced, unless nil, gets each compiled state and the time when compiling began.
	Traced func(before, s *State, began time.Time)
	// Compiled is told of each new state before it is published, and of the one before. It is called by the model's loop.
	Compiled func(before, s *State, now time.Time)
}

// New returns a model of nothing, with what an earlier run kept in state_dir. It compiles nothing before Run and Publish.
func New(o Options) *Model {
	m := &Model{Published: o.Published, o: o, ask: make(chan request), carrier: o.Carrier, clock: newClock(time.Now())}
	m.files = newFiles(o.StateDir)
	m.compiler.Memory, m.local = m.files.load(time.Now())
	m.started = time.Now()
	m.show(&State{Config: m.State().Config, Local: m.local.Map})
	m.moved.Store(true)
	return m
}

// Publish takes a snapshot of the store. It does not block, and is called by one goroutine at a time.
func (m *Model) Publish(s store.Snapshot) {
	m.mu.Lock()
	m.latest = &s
	if m.seen.IsZero() {
		m.seen = time.Now()
	}
	m.mu.Unlock()
	m.wake.Send()
}

// Run compiles whenever something has changed, until ctx ends.
func (m *Model) Run(ctx context.Context) error {
	expiry := time.NewTimer(time.Hour)
	defer expiry.Stop()
	for {
		var asked request
		ask, kept := m.ask, (<-chan error)(nil)
		if m.proposed != nil {
			ask, kept = nil, m.proposed.kept
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-expiry.C:
		case asked = <-ask:
		case err := <-kept:
			asked = m.decide(err)
		}
		m.working(time.Now())
		m.compile()
		if asked.answer != nil { // what was published before the request counts for it
			m.answer(asked)
		}
		m.working(time.Time{})
		expiry.Reset(m.nextExpiry())
	}
}

// working notes since when the loop is at work.
func (m *Model) working(since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.works = since
}

// answer answers a request, or proposes the change that it asks for.
func (m *Model) answer(r request) {
	if r.change == nil {
		r.answer <- r.err
		return
	}
	local, recorded, err := r.change(m.State(), m.local)
	if err != nil || local.Map == m.local.Map {
		r.answer <- err
		return
	}
	m.proposed = &proposal{request{answer: r.answer}, local, recorded, m.files.overrides.Write(textOf(local))}
}

// decide makes the change that was proposed, unless it could not be kept, and returns what is to be answered.
func (m *Model) decide(err error) request {
	p := m.proposed
	m.proposed = nil
	if err != nil {
		m.files.overrides.Keep(textOf(m.local)) // what was refused may reach the disk yet
		p.err = fmt.Errorf("nothing was changed, for it could not be kept: %w", err)
		return p.request
	}
	for _, e := range p.recorded {
		m.o.Events.Record(e)
	}
	m.local = p.local
	return p.request
}

// storePatience is how long after the start a store that can't be read is waited for before what can be read is served.
const storePatience = 10 * time.Second

// nextExpiry returns how long nothing lapses by time alone.
func (m *Model) nextExpiry() time.Duration {
	next := time.Now().Add(time.Hour)
	if patience := m.started.Add(storePatience); !m.everRead && time.Now().Before(patience) {
		next = patience
	}
	var lapses time.Time
	if m.State().Complete && m.proposed == nil { // before, what has lapsed since an earlier run lapses with the first state
		lapses = m.local.nextExpiry()
	}
	for _, t := range []time.Time{m.compiler.Memory.NextExpiry(), lapses, m.o.Outliers.Next()} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return pauseUntil(next, time.Now())
}

// pauseUntil is how long to wait for next. What is due and is not over, though it was looked at, would be looked at without end.
func pauseUntil(next, now time.Time) time.Duration {
	if !next.After(now) {
		return 100 * time.Millisecond
	}
	return max(next.Sub(now), time.Millisecond)
}

// compile makes the state anew and hands it to the engine.
func (m *Model) compile() {
	m.mu.Lock()
	latest, seen := m.latest, m.seen
	m.seen = time.Time{}
	m.mu.Unlock()
	c, fileErrors := m.o.Configuration.Now()
	if latest == nil {
		return // the first snapshot is still to come
	}
	if m.everRead = m.everRead || latest.Connected || latest.Kept; !m.everRead && m.waits() {
		m.await(latest, c, fileErrors)
		return // a folder that is mounted late would look like services that are gone
	}
	if !m.State().Complete && m.o.Checks.Fleet.Awaits(latest) {
		return // what the fleet finds down must not get connections because this node has just started
	}
	next := m.adopted()
	now := time.Now()
	if local := m.local.expire(now); local.Map != m.local.Map && m.proposed == nil {
		m.local = local
		m.files.overrides.Keep(textOf(local))
	}
	s := &State{Snapshot: *latest, Config: c, Local: m.local.Map, Complete: true, EverRead: m.everRead}
	s.Problems = slices.Concat(fileErrors, m.o.StateDir.Problems(), c.Unheld(latest.VIPs, latest.Pools))
	s.Env, s.Inputs = m.env(c, latest), balancer.Inputs{
		Services: latest.Services, Endpoints: latest.Endpoints, VIPs: latest.VIPs, Pools: latest.Pools,
		Overrides: m.local.over(latest.Overrides, m.State().Inputs.Overrides),
	}
	s.Inputs.Health = m.o.Checks.Verdicts(&s.Env, &s.Inputs)
	s.Inputs.Ejected = m.o.Outliers.Ejected(&s.Inputs, &s.Env, m.carrier)
	before, remembered := m.State().Desired, m.compiler.Memory
	m.compiler.Memory = m.release(remembered).AdjustClock(m.clock.stepped(now.Round(0), time.Since(m.clock.began)))
	s.Desired = m.compiler.Next(s.Env, s.Inputs, now)
	memory := m.compiler.Memory
	s.Inputs = s.Inputs.WithMemory(memory)
	if worthSaving(remembered, memory) || s.Desired.Contested != before.Contested {
		m.files.keepMemory(memory, s.Desired.Contested, now)
	}
	s.Checked = m.o.Checks.All()
	s.fallen(m.State())
	s.Lacking, s.Unable = m.o.Checks.Lacking(s.Snapshot.Services)
	s.Desired.Revision = balancer.Revision{Store: latest.Revision, Seen: seen}
	if m.o.Traced != nil {
		m.o.Traced(m.State(), s, now)
	}
	m.o.Compiled(m.State(), s, now)
	m.show(s)
	if next != nil {
		m.o.Engine.Switch(next.dataplane, s.Desired, func() { close(next.moved) })
		return
	}
	m.o.Engine.Set(s.Desired)
}

// await publishes why the store could not be read yet, and nothing that it has: nothing of that is served.
func (m *Model) await(latest *store.Snapshot, c config.Config, fileErrors []balancer.Problem) {
	s := &State{Config: c, Local: m.local.Map, Problems: slices.Concat(fileErrors, m.o.StateDir.Problems())}
	s.Snapshot = store.Snapshot{Err: latest.Err, Problems: latest.Problems}
	m.o.Awaiting(s, time.Now())
	m.show(s)
}

// waits reports whether a store that could not be read yet is waited for before what can be read is served.
func (m *Model) waits() bool {
	return time.Since(m.started) < storePatience || m.o.Patient
}

// env collects the facts about this node.
func (m *Model) env(c config.Config, latest *store.Snapshot) balancer.Env {
	if m.moved.Swap(false) {
		local, networked, err := m.o.LocalAddresses()
		if err != nil {
			m.o.Events.Record(events.Event{
				Kind: events.Problem, Level: slog.LevelWarn, Text: "this host's addresses can't be listed; node ports stay where they are", Cause: err.Error(),
			})
		} else {
			m.addresses, m.networked = local, networked
		}
	}
	return balancer.Env{
		Node: c.Node, Zone: c.Zone, Standby: m.o.Configuration.Standby(), Local: m.addresses, LocalInSubnets: m.networked, ExternalVIPs: !c.Addresses.Bind, NodePorts: c.NodePorts.Addresses,
		Allowed: c.Addresses.Allowed, AllowedEndpoints: c.Addresses.AllowedEndpoints, Reserved: m.o.Reserved(), Nodes: m.nodesAddresses(latest.Nodes, c.Node), AllowExec: c.Health.AllowExec, TLSDir: c.Health.TLSDir, FleetExec: m.o.Checks.Fleet.MayRun(), Capabilities: m.carrier.Capabilities(),
	}
}

// nodesAddresses returns the addresses of the other nodes. The same nodes have the same map.
func (m *Model) nodesAddresses(nodes snap.Map[balancer.NodeName, *balancer.Node], self string) snap.Map[netip.Addr, balancer.NodeName] {
	if nodes != m.nodes {
		m.nodes, m.of = nodes, balancer.UpdateNodeAddresses(m.of, m.nodes, nodes, balancer.NodeName(self))
	}
	return m.of
}

// AddressesChanged makes the loop list the host's addresses again.
func (m *Model) AddressesChanged() {
	m.moved.Store(true)
	m.Kick()
}

// Update changes the local overrides in the loop, unless change is nil, and returns when that, and all that was published before, is
// compiled.
func (m *Model) Update(ctx context.Context, change Edit) error {
	r := request{change: change, answer: make(chan error, 1)}
	select {
	case m.ask <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release gives up VIPs before their time. One that has a frontend again, or another time, is not concerned.
func (m *Model) Release(vips map[netip.Addr]balancer.Drain) {
	m.mu.Lock()
	m.freed = vips
	m.mu.Unlock()
	m.Kick()
}

// release returns the memory without the VIPs that were released.
func (m *Model) release(memory balancer.Memory) balancer.Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a, d := range m.freed {
		if is, leaves := memory.DrainingVIPs.Get(a); leaves && is == d {
			memory.DrainingVIPs = memory.DrainingVIPs.Delete(a)
		}
	}
	m.freed = nil
	return memory
}

// Waiting returns for how long a change has not been compiled: the loop has not come to it, or stands still in its work.
func (m *Model) Waiting() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.works
	if since.IsZero() || !m.seen.IsZero() && m.seen.Before(since) {
		since = m.seen
	}
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
}

// adoption is a dataplane that is to take over.
type adoption struct {
	dataplane dataplane.Dataplane
	moved     chan struct{} // closed when it has
}

// Adopt compiles for another dataplane from now on, and has it take over. The channel is closed when all traffic has
// moved; it never is when another one is adopted before that.
func (m *Model) Adopt(dp dataplane.Dataplane) <-chan struct{} {
	a := &adoption{dataplane: dp, moved: make(chan struct{})}
	m.mu.Lock()
	m.next = a
	m.mu.Unlock()
	m.Kick()
	return a.moved
}

// adopted returns the dataplane that is to take over with the state that is compiled now; nil means none is.
func (m *Model) adopted() *adoption {
	m.mu.Lock()
	next := m.next
	m.next = nil
	m.mu.Unlock()
	if next != nil {
		m.carrier = next.dataplane
	}
	return next
}
