package model

import (
	"context"
	"errors"
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
	"vipd/cmd/vipd/daemon/internal/agents"
	"vipd/cmd/vipd/daemon/internal/checks"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/cmd/vipd/daemon/internal/names"
	"vipd/cmd/vipd/daemon/internal/outlier"
	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/store"
	"vipd/store/statedir"
)

// Model owns all inputs of the compiler. Only its loop uses the compiler, the memory and the local
// overrides. It publishes each result as an immutable State. Its methods are safe for concurrent
// use.
type Model struct {
	*Published
	o     Options
	moved atomic.Bool // set if the host's addresses may have changed
	ask   chan request

	mu        sync.Mutex // guards the rest of this block
	latest    *store.Snapshot
	seen      time.Time                     // when the oldest snapshot that is not compiled yet was published
	busySince time.Time                     // start of the loop's current work, or zero while it waits
	next      *adoption                     // a dataplane that should take over
	freed     map[netip.Addr]balancer.Drain // VIPs to be released early

	// The loop owns the fields below.
	carrier   dataplane.Dataplane // the dataplane of the compiled state
	compiler  balancer.Compiler
	local     Overrides
	proposed  *proposal // a pending change of the local overrides, or nil
	files     files
	clock     clock        // the steps of the wall clock
	started   time.Time    // when New had read the previous run's files; reading may wait for the disk
	everRead  bool         // set once the store was readable
	addresses []netip.Addr // the host's own addresses
	networked []netip.Addr // addresses whose device has a network that contains them
	// nodes holds the nodes of the fleet, as published by the nodes themselves. nodeByAddr maps the
	// addresses of all other nodes to the nodes' names.
	nodes      snap.Map[balancer.NodeName, *balancer.Node]
	nodeByAddr snap.Map[netip.Addr, balancer.NodeName]
}

// Edit changes the local overrides, and returns the new overrides, and the events to record.
type Edit func(*State, Overrides) (Overrides, []events.Event, error)

// request asks the loop to change the local overrides. If change is nil, it only waits for the
// loop.
type request struct {
	change Edit
	answer chan error
	err    error // the result, if change is nil
}

// proposal is a change to the local overrides that takes effect when it is on disk. The channel
// kept receives the result of the write.
type proposal struct {
	request
	local    Overrides
	recorded []events.Event
	kept     <-chan error
}

// Options configures a Model.
type Options struct {
	// Published receives the states, and Configuration is the daemon's own part of the
	// configuration.
	Published     *Published
	Configuration *liveconfig.Config
	// StateDir stores overrides and drains for the next run.
	StateDir *statedir.Dir
	Events   *events.History
	// Carrier is the dataplane that is used until Adopt is called. Engine receives the compiled
	// states.
	Carrier  dataplane.Dataplane
	Engine   *dataplane.Engine
	Checks   *checks.Checks
	Names    *names.Names
	Agents   *agents.Agents
	Outliers *outlier.Detector
	// LocalAddresses lists the host's own addresses, and the addresses with a network on their
	// device.
	LocalAddresses func() (own, networked []netip.Addr, err error)
	// Reserved lists the addresses that services from etcd may not claim.
	Reserved func() []balancer.Reserved
	// Patient makes the model wait without limit for a store that has never been readable.
	Patient bool
	// Awaiting receives each state that contains only the reason why the store has never been
	// readable. The model's loop calls it.
	Awaiting func(s *State, now time.Time)
	// Traced receives each compiled state and the start time of its compilation. It may be nil.
	Traced func(before, s *State, began time.Time)
	// Compiled receives each new state and the previous state before the new state is published.
	// The model's loop calls it.
	Compiled func(before, s *State, now time.Time)
}

// New returns a model that starts with the files that the previous run saved in state_dir. It
// compiles nothing before Run and Publish are called.
func New(o Options) *Model {
	m := &Model{Published: o.Published, o: o, ask: make(chan request), carrier: o.Carrier, clock: newClock(time.Now())}
	m.files = newFiles(o.StateDir)
	m.compiler.Memory, m.local = m.files.load(time.Now())
	m.started = time.Now()
	m.show(&State{Config: m.State().Config, Local: m.local.Map})
	m.moved.Store(true)
	return m
}

// Publish passes a snapshot of the store to the loop. It does not block. Calls must not overlap.
func (m *Model) Publish(s store.Snapshot) {
	m.mu.Lock()
	m.latest = &s
	if m.seen.IsZero() {
		m.seen = time.Now()
	}
	m.mu.Unlock()
	m.wake.Send()
}

// Run compiles at each change until ctx is done.
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
		if asked.answer != nil { // the next compile includes everything that was published before the request
			m.answer(asked)
		}
		m.working(time.Time{})
		expiry.Reset(m.nextExpiry())
	}
}

func (m *Model) working(since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busySince = since
}

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

// decide applies the proposed change, unless err reports that it could not be saved. It returns the
// request together with the result.
func (m *Model) decide(err error) request {
	p := m.proposed
	m.proposed = nil
	if err != nil {
		m.files.overrides.Keep(textOf(m.local)) // overwrite the rejected change, which may still reach the disk
		p.err = fmt.Errorf("nothing was changed, because the change could not be saved: %w", err)
		return p.request
	}
	for _, e := range p.recorded {
		m.o.Events.Record(e)
	}
	m.local = p.local
	return p.request
}

// storePatience is how long vipd waits after the start for a store that it can't read. After that,
// it serves the part of the store that it can read.
const storePatience = 10 * time.Second

func (m *Model) nextExpiry() time.Duration {
	next := time.Now().Add(time.Hour)
	if patience := m.started.Add(storePatience); !m.everRead && time.Now().Before(patience) {
		next = patience
	}
	var lapses time.Time
	if m.State().Complete && m.proposed == nil { // expired inputs of an earlier run are dropped with the first state
		lapses = m.local.nextExpiry()
	}
	for _, t := range []time.Time{m.compiler.Memory.NextExpiry(), lapses, m.o.Outliers.Next(), m.State().NamesUntil} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return pauseUntil(next, time.Now())
}

// pauseUntil returns how long to wait until next. It is never zero, or the loop would spin if an
// input is due but does not count as expired yet.
func pauseUntil(next, now time.Time) time.Duration {
	if !next.After(now) {
		return 100 * time.Millisecond
	}
	return max(next.Sub(now), time.Millisecond)
}

// compile compiles the inputs and passes the state to the engine.
func (m *Model) compile() {
	m.mu.Lock()
	latest, seen := m.latest, m.seen
	m.seen = time.Time{}
	m.mu.Unlock()
	c, fileErrors := m.o.Configuration.Now()
	if latest == nil {
		return // there is no snapshot yet
	}
	if m.everRead = m.everRead || latest.Connected || latest.Kept; !m.everRead && m.waits() {
		m.await(latest, c, fileErrors)
		return // services in a directory that is mounted late would seem removed
	}
	if !m.State().Complete && m.o.Checks.Fleet.Awaits(latest) {
		return // after this node's start, endpoints that the fleet found down must not get connections
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
	m.resolve(s)
	s.NamesUntil = m.namesUntil(s, now)
	s.Inputs.Agents = m.o.Agents.Answers(&s.Env, &s.Inputs)
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
	s.Lacking = append(s.Lacking, m.o.Agents.Problems(s.Snapshot.Services)...)
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

// namesPatience is how long a node waits for the first DNS answers after the store was first
// readable. Until then, it is not ready.
const namesPatience = 5 * time.Second

// namesUntil returns the time until which s is not ready because a host name has no first answer
// yet. It returns zero if no such name exists or the wait is over. A node that was ready stays
// ready.
func (m *Model) namesUntil(s *State, now time.Time) time.Time {
	until := m.State().NamesUntil
	if s.EverRead && !m.State().EverRead {
		until = now.Add(namesPatience)
	}
	if !until.After(now) || !m.o.Names.Awaits() {
		return time.Time{}
	}
	return until
}

// resolve adds the answers for host names and the verdicts of checks to s.
func (m *Model) resolve(s *State) {
	s.Inputs.Health = m.State().Inputs.Health
	s.Inputs.Resolved = m.o.Names.Resolved(&s.Inputs, m.everRead)
	s.Inputs.Health = m.o.Checks.Verdicts(&s.Env, &s.Inputs)
	if resolved := m.o.Names.Checked(&s.Inputs); resolved != s.Inputs.Resolved {
		s.Inputs.Resolved = resolved
		s.Inputs.Health = m.o.Checks.Verdicts(&s.Env, &s.Inputs) // endpoints that were removed are no longer checked
	}
}

// await publishes a state without services of the store. It contains only the reason why the store
// has never been readable.
func (m *Model) await(latest *store.Snapshot, c config.Config, fileErrors []balancer.Problem) {
	s := &State{Config: c, Local: m.local.Map, Problems: slices.Concat(fileErrors, m.o.StateDir.Problems())}
	s.Snapshot = store.Snapshot{Err: latest.Err, Problems: latest.Problems}
	m.o.Awaiting(s, time.Now())
	m.show(s)
}

// waits reports whether the model still waits for a store that has never been readable. When it
// stops waiting, it serves the part that it can read.
func (m *Model) waits() bool {
	return time.Since(m.started) < storePatience || m.o.Patient
}

// env collects facts about this node.
func (m *Model) env(c config.Config, latest *store.Snapshot) balancer.Env {
	if m.moved.Swap(false) {
		local, networked, err := m.o.LocalAddresses()
		switch {
		case err == nil:
			m.addresses, m.networked = local, networked
		case errors.Is(err, host.ErrUnsettled): // for example while vipd adds thousands of VIPs
			m.moved.Store(true)
		default:
			m.o.Events.Record(events.Event{
				Kind: events.Problem, Level: slog.LevelWarn, Text: "this host's addresses can't be listed; node ports keep their addresses", Cause: err.Error(),
			})
		}
	}
	return balancer.Env{
		Node: c.Node, Zone: c.Zone, Standby: m.o.Configuration.Standby(), Local: m.addresses, LocalInSubnets: m.networked, ExternalVIPs: !c.Addresses.Bind, NodePorts: c.NodePorts.Addresses,
		Allowed: c.Addresses.Allowed, AllowedEndpoints: c.Addresses.AllowedEndpoints, Reserved: m.o.Reserved(), Nodes: m.nodesAddresses(latest.Nodes, c.Node), AllowExec: c.Health.AllowExec, TLSDir: c.Health.TLSDir, RealServer: c.Direct.RealServer && c.Addresses.Bind, MayOwn: c.Ownership.Enabled, FleetExec: m.o.Checks.Fleet.MayRun(), Capabilities: m.carrier.Capabilities(),
	}
}

// nodesAddresses maps the addresses of the other nodes to the nodes' names. If the nodes have not
// changed, it returns the same map.
func (m *Model) nodesAddresses(nodes snap.Map[balancer.NodeName, *balancer.Node], self string) snap.Map[netip.Addr, balancer.NodeName] {
	if nodes != m.nodes {
		m.nodes, m.nodeByAddr = nodes, balancer.UpdateNodeAddresses(m.nodeByAddr, m.nodes, nodes, balancer.NodeName(self))
	}
	return m.nodeByAddr
}

// AddressesChanged makes the loop list the host's addresses again.
func (m *Model) AddressesChanged() {
	m.moved.Store(true)
	m.Kick()
}

// Update changes the local overrides in the loop. If change is nil, it only waits. It returns when
// the change, and everything that was published before the call, is compiled.
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

// Release releases VIPs early. It ignores a VIP that has a frontend again, or whose current drain
// differs from the drain in vips.
func (m *Model) Release(vips map[netip.Addr]balancer.Drain) {
	m.mu.Lock()
	m.freed = vips
	m.mu.Unlock()
	m.Kick()
}

// release returns memory without the drains of released VIPs.
func (m *Model) release(memory balancer.Memory) balancer.Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a, d := range m.freed {
		if current, leaves := memory.DrainingVIPs.Get(a); leaves && current == d {
			memory.DrainingVIPs = memory.DrainingVIPs.Delete(a)
		}
	}
	m.freed = nil
	return memory
}

// Waiting returns how long the oldest change has been waiting for the loop, which may be stuck in
// its work.
func (m *Model) Waiting() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.busySince
	if since.IsZero() || !m.seen.IsZero() && m.seen.Before(since) {
		since = m.seen
	}
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
}

// adoption is a dataplane that should take over.
type adoption struct {
	dataplane dataplane.Dataplane
	moved     chan struct{} // closed when the dataplane has taken over
}

// Adopt makes another dataplane take over, and compiles for it from now on. The channel is closed
// when all traffic has moved. It is never closed if yet another dataplane is adopted before that.
func (m *Model) Adopt(dp dataplane.Dataplane) <-chan struct{} {
	a := &adoption{dataplane: dp, moved: make(chan struct{})}
	m.mu.Lock()
	m.next = a
	m.mu.Unlock()
	m.Kick()
	return a.moved
}

// adopted returns the adoption that starts with the current state, or nil.
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
