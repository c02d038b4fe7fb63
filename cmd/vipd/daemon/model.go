package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/find"
	"vipd/cmd/internal/journal"
	"vipd/cmd/vipd/daemon/internal/statedir"
	"vipd/dataplane"
	"vipd/store"
	"vipd/store/etcd"
)

// model owns everything that is compiled. Its loop is the only one that touches the compiler, the memory and the local
// overrides; what it has made is published as a state, which never changes.
type model struct {
	*Daemon
	wake    chan struct{} // holds one token: look again
	moved   atomic.Bool   // the host's addresses may have changed
	reloads atomic.Int32  // under way, which say themselves that files were read
	ask     chan request
	current atomic.Pointer[state]
	changed atomic.Pointer[chan struct{}] // closed when current is replaced
	// modeChanged holds a token when the configuration says something else about the mode.
	modeChanged chan struct{}

	reading sync.Mutex // held while the configuration is read, so that the last to read is the last to say

	mu         sync.Mutex // guards the rest of this block
	latest     *store.Snapshot
	seen       time.Time // when the oldest snapshot that is not compiled yet came
	fileConfig config.Config
	nodeConfig etcd.NodeConfig // what the fleet says of this node
	fileErrors []balancer.Problem
	fileInfo   os.FileInfo // of the file that fileConfig was read from
	next       *adoption   // a dataplane that is to take over

	// The rest belongs to the loop.
	carrier   dataplane.Dataplane // for which it is compiled
	compiler  balancer.Compiler
	memory    balancer.Memory
	local     overrides
	files     files
	told      told // what was recorded and still holds
	drains    drainsOpen
	unread    time.Time    // since when the services' files can't be read
	everRead  bool         // the store could be read at least once
	addresses []netip.Addr // the host's own
}

// state is one compiled state with what it was made from.
type state struct {
	snapshot store.Snapshot
	inputs   balancer.Inputs
	env      balancer.Env
	desired  balancer.Desired
	checked  snap.Map[balancer.Target, health.Subject] // what has a health check
	local    snap.Map[balancer.Target, *balancer.Override]
	config   config.Config
	problems []balancer.Problem              // of the configuration and of what is kept on disk
	complete bool                            // the first snapshot is in it
	everRead bool                            // the store could be read at least once
	lacking  []balancer.Problem              // of checks that this node can't carry out
	unable   int                             // so many
	fell     snap.Map[balancer.Target, bool] // what went down from being up
}

// place is where what users name is searched: among all services, with what is said of them by hand on this node.
func (s *state) place() find.Place {
	in := s.inputs
	in.Overrides = s.local
	return find.Place{Inputs: &in}
}

// request asks the loop to change the local overrides.
type request struct {
	change func(*state, overrides) (overrides, error)
	answer chan error
}

func newModel(d *Daemon, carrier dataplane.Dataplane) *model {
	m := &model{
		Daemon: d, wake: make(chan struct{}, 1), ask: make(chan request), modeChanged: make(chan struct{}, 1), fileConfig: d.config,
		carrier: carrier,
	}
	// What can't be kept is a problem that the next round tells.
	m.files = files{statedir.New(d.config.StateDir, func(error) { m.kick() })}
	changed := make(chan struct{})
	m.changed.Store(&changed)
	m.current.Store(&state{config: d.config})
	m.memory, m.local = m.files.load(time.Now())
	m.moved.Store(true)
	return m
}

// publish takes a snapshot of the store. It does not block.
func (m *model) publish(s store.Snapshot) {
	m.mu.Lock()
	m.latest = &s
	if m.seen.IsZero() {
		m.seen = time.Now()
	}
	m.mu.Unlock()
	if m.configChanged() {
		m.reconfigure()
	}
	m.metrics.storeEvent()
	m.kick()
}

// configChanged reports whether the configuration file is another than the one that was read.
func (m *model) configChanged() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	info, err := os.Stat(m.ConfigFile)
	was := m.fileInfo
	return err != nil || was == nil || !os.SameFile(was, info) || was.Size() != info.Size() || !was.ModTime().Equal(info.ModTime())
}

// reconfigure reads the daemon's own part of the configuration again. What can change while running does; a part with
// errors keeps what was there.
func (m *model) reconfigure() {
	m.reading.Lock()
	defer m.reading.Unlock()
	info, _ := os.Stat(m.ConfigFile) // before reading: a change in between is seen the next time
	c, problems, err := config.Load(m.ConfigFile)
	if err != nil {
		problems = append(problems, balancer.Problem{Severity: balancer.SeverityError, Origin: balancer.Origin{File: m.ConfigFile}, Text: err.Error()})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if refuse(problems) == nil {
		if m.Mode != "" {
			c.Mode = m.Mode
		}
		if c.Node == "" {
			c.Node = m.Daemon.config.Node
		}
		problems = append(problems, m.needRestart(c)...)
		if c.Mode != m.fileConfig.Mode || c.StrictMode != m.fileConfig.StrictMode {
			m.chooseAgain()
		}
		m.fileConfig = c
		if m.fleet != nil {
			m.fleet.source.SetDefaults(c.Defaults)
		}
	}
	m.fileErrors, m.fileInfo = problems, info
	m.kick()
}

// needRestart reports what was changed in the configuration but is in use as it was when vipd started.
func (m *model) needRestart(c config.Config) []balancer.Problem {
	var problems []balancer.Problem
	was, is := reflect.ValueOf(m.Daemon.config), reflect.ValueOf(c)
	for i := range is.NumField() {
		name := is.Type().Field(i).Tag.Get("toml")
		switch name {
		case "mode", "strict_mode", "node", "zone", "node_ports", "defaults", "services", "health": // followed while running
			continue
		}
		if name == "store" && m.Daemon.config.Store.Kind == c.Store.Kind {
			continue
		}
		if name == "addresses" {
			a, b := m.Daemon.config.Addresses, c.Addresses
			a.Allowed, b.Allowed = nil, nil
			if reflect.DeepEqual(a, b) {
				continue
			}
		}
		if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			problems = append(problems, balancer.Problem{
				Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: m.ConfigFile}, Field: name,
				Text: "has changed, which takes a restart of vipd to come into effect",
			})
		}
	}
	return problems
}

// kick makes the loop look again.
func (m *model) kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run compiles whenever something has changed, until ctx ends.
func (m *model) run(ctx context.Context) error {
	expiry := time.NewTimer(time.Hour)
	defer expiry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-expiry.C:
		case r := <-m.ask:
			r.answer <- m.answer(r)
			expiry.Reset(m.nextExpiry())
			continue
		}
		m.compile()
		expiry.Reset(m.nextExpiry())
	}
}

// answer changes the local overrides as r asks, and compiles.
func (m *model) answer(r request) error {
	m.compile() // what was published before the request counts for it
	local, err := r.change(m.state(), m.local)
	if err != nil || local.Map == m.local.Map {
		return err
	}
	if err := m.files.saveOverrides(local); err != nil {
		return err
	}
	m.local = local
	m.compile()
	return nil
}

// storePatience is how long after the start a store that can't be read is waited for before what can be read is served.
const storePatience = 10 * time.Second

// nextExpiry returns how long nothing lapses by time alone.
func (m *model) nextExpiry() time.Duration {
	next := time.Now().Add(time.Hour)
	if patience := m.started.Add(storePatience); !m.everRead && time.Now().Before(patience) {
		next = patience
	}
	for _, t := range []time.Time{m.memory.NextExpiry(), m.local.nextExpiry(), m.passive.Next()} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return max(time.Until(next), time.Millisecond)
}

// compile makes the state anew and hands it to the engine.
func (m *model) compile() {
	m.mu.Lock()
	latest, seen, fileErrors := m.latest, m.seen, m.fileErrors
	c := m.configuredLocked()
	m.seen = time.Time{}
	m.mu.Unlock()
	if latest == nil {
		return // the first snapshot is still to come
	}
	if m.everRead = m.everRead || latest.Connected || latest.Kept; !m.everRead && m.waits() {
		return // a folder that is mounted late would look like services that are gone
	}
	if !m.state().complete && m.checks.Awaits(latest) {
		return // what the fleet finds down must not get connections because this node has just started
	}
	next := m.adopted()
	now := time.Now()
	if local := m.local.expire(now); local.Map != m.local.Map {
		m.local = local
		m.files.Note(overridesName, m.files.saveOverrides(local))
	}
	s := &state{snapshot: *latest, config: c, local: m.local.Map, complete: true, everRead: m.everRead}
	s.problems = slices.Concat(fileErrors, m.files.Problems())
	before, memory := m.state().desired, m.memory.Expire(now)
	s.desired = before
	// What is compiled has a say in what it is compiled from: drains begin and end, and a VIP is no place for node ports.
	// The second round takes that in; a third would find nothing new.
	for range 2 {
		s.env = m.env(c, s.desired.Addresses)
		s.inputs, s.desired = m.round(s, memory)
		memory = memory.After(before, s.desired, now)
	}
	if memory.Drains != m.memory.Drains || memory.Leaving != m.memory.Leaving || s.desired.Contested != before.Contested {
		m.files.saveMemory(memory, s.desired.Contested)
	}
	m.memory = memory
	s.checked = m.checks.All()
	s.fallen(m.state())
	s.lacking, s.unable = m.checks.Lacking(s.snapshot.Services)
	s.desired.Revision = balancer.Revision{Store: latest.Revision, Seen: seen}
	if seen.IsZero() {
		s.desired.Revision.Seen = now
	}
	m.tell(s, before, now)
	m.current.Store(s)
	changed := make(chan struct{})
	close(*m.changed.Swap(&changed))
	if next != nil {
		m.engine.Switch(next.dataplane, s.desired, func() { close(next.moved) })
		return
	}
	m.engine.Set(s.desired)
}

// round compiles the snapshot of s with what is remembered.
func (m *model) round(s *state, memory balancer.Memory) (balancer.Inputs, balancer.Desired) {
	in := balancer.Inputs{
		Services: s.snapshot.Services, Endpoints: s.snapshot.Endpoints, Overrides: m.local.over(s.snapshot.Overrides),
	}.Remembering(memory)
	in.Health = m.checks.Verdicts(&in, s.env.AllowExec)
	in.Ejected = m.passive.Ejected(&in, &s.env, m.carrier)
	return in, m.compiler.Next(s.env, in)
}

// nodePortAddresses are those of the node's own addresses that are no VIPs; or, of a family in which all of them are, all.
func nodePortAddresses(own []netip.Addr, vips snap.Map[netip.Addr, int]) []netip.Addr {
	var open []netip.Addr
	for _, v4 := range []bool{true, false} {
		of := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return a.Is4() != v4 })
		if plain := slices.DeleteFunc(slices.Clone(of), vips.Has); len(plain) > 0 {
			of = plain
		}
		open = append(open, of...)
	}
	return open
}

// env collects the facts about this node.
func (m *model) env(c config.Config, vips snap.Map[netip.Addr, int]) balancer.Env {
	if m.moved.Swap(false) {
		local, err := m.host.LocalAddresses(nil)
		if err != nil {
			m.journal.Record(journal.Event{
				Kind: journal.Problem, Level: slog.LevelWarn, Text: "this host's addresses can't be listed; node ports stay where they are", Cause: err.Error(),
			})
		} else {
			m.addresses = local
		}
	}
	return balancer.Env{
		Node: c.Node, Zone: c.Zone, Local: m.addresses, LocalOnly: !c.Addresses.Bind, NodePortAddresses: nodePortAddresses(m.addresses, vips), NodePorts: c.NodePorts.Addresses,
		Allowed: c.Addresses.Allowed, AllowExec: c.Health.AllowExec, FleetExec: m.checks.FleetExec(), Capabilities: m.carrier.Capabilities(),
	}
}

// addressesChanged makes the loop list the host's addresses again.
func (m *model) addressesChanged() {
	m.moved.Store(true)
	m.kick()
}

// state returns what was last compiled.
func (m *model) state() *state { return m.current.Load() }

// catchUp returns when all that was published before is compiled.
func (m *model) catchUp(ctx context.Context) error {
	return m.update(ctx, func(_ *state, o overrides) (overrides, error) { return o, nil })
}

// update changes the local overrides in the loop, and returns when the change is compiled.
func (m *model) update(ctx context.Context, change func(*state, overrides) (overrides, error)) error {
	r := request{change, make(chan error, 1)}
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

// waiting returns for how long a snapshot has not been compiled.
func (m *model) waiting() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen.IsZero() {
		return 0
	}
	return time.Since(m.seen)
}
