package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
	"vipd/store/statedir"
)

// Options configures a Source.
type Options struct {
	client.Config
	// StateDir is the folder of the file with the last good state. If nil, the state is not saved.
	StateDir *statedir.Dir
	// Defaults holds the values of fields that services don't set ([defaults]). SetDefaults
	// replaces them.
	Defaults map[string]any
	// Node is the name of this node, whose configuration (nodes/NODE/config) is followed. If empty,
	// no configuration is followed.
	Node string
	// Configured receives this node's configuration: once before the first snapshot, and after each
	// change. Watch's goroutine calls it, so it must not block.
	Configured func(schema.NodeConfig)
	// Connection is called with the followed revision when the source starts to follow etcd, and
	// with the reason when it loses etcd. Watch's goroutine calls it, so it must not block.
	Connection func(revision int64, err error)
	// Zone returns the zone of this node, and Pended receives each step of a pending change on this
	// node, with its author. Watch's goroutine calls both, so they must not block.
	Zone   func() string
	Pended func(p *store.Pending, how store.Outcome, by string)
	// Log receives errors about the file with the last good state.
	Log *slog.Logger
	// Patience is how long an outage of etcd must last before it is published. At startup, it is
	// how long to wait before the saved state is published. The default is 2 s.
	Patience time.Duration
	// Timing holds the intervals of the connection. If nil, the default intervals are used.
	Timing *client.Timing
}

const (
	defaultPatience = 2 * time.Second
	// quiet is how long no change may arrive before changes are published. longest is the maximum
	// delay after the first change.
	quiet   = 10 * time.Millisecond
	longest = 50 * time.Millisecond
	// tick is the interval of processing changes that depend only on time.
	tick = 5 * time.Second
)

// Source follows services in etcd. It implements store.Source.
type Source struct {
	options  Options
	keys     schema.Keys
	file     *statedir.File
	timing   client.Timing
	defaults chan map[string]any

	running sync.Mutex // held while Watch runs
	mu      sync.Mutex // guards seen
	seen    Position
}

var _ store.Source = (*Source)(nil)

type Position struct {
	// Published is the revision of the last snapshot. Seen is the revision up to which this
	// snapshot is complete, because later changes did not affect it.
	Published, Seen int64
}

// New returns a source that connects when Watch is called. It returns an error if the options are
// invalid.
func New(o Options) (*Source, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("following etcd: %w", err)
	}
	if o.Node != "" {
		if err := schema.CheckNode(o.Node); err != nil {
			return nil, fmt.Errorf("following etcd: %w", err)
		}
	}
	if o.Configured == nil {
		o.Configured = func(schema.NodeConfig) {}
	}
	if o.Connection == nil {
		o.Connection = func(int64, error) {}
	}
	if o.Zone == nil {
		o.Zone = func() string { return "" }
	}
	if o.Pended == nil {
		o.Pended = func(*store.Pending, store.Outcome, string) {}
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	usual := client.UsualTiming()
	o.Timing = cmp.Or(o.Timing, &usual)
	keys, err := schema.NewKeys(o.Prefix)
	file := o.StateDir.File(cacheName, "etcd's last good state is not saved", statedir.Large)
	return &Source{options: o, keys: keys, file: file, timing: *o.Timing, defaults: make(chan map[string]any, 1)}, err
}

// SetDefaults replaces Options.Defaults. It does not wait until the change is published.
func (s *Source) SetDefaults(defaults map[string]any) {
	for {
		select {
		case s.defaults <- defaults:
			return
		case <-s.defaults: // drop earlier defaults that were not processed yet
		}
	}
}

// Position returns the progress of the source. vipctl uses it to wait for a revision, which is
// published when Seen has reached it.
func (s *Source) Position() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// Watch publishes the state of etcd, and publishes it again after each change. It returns nil when
// ctx ends. While etcd is unavailable, it publishes the last state, which may be from before a
// restart, with Connected set to false. If etcd was never read, the first snapshot has revision 0.
// It returns an error only if Watch is already running.
func (s *Source) Watch(ctx context.Context, publish func(store.Snapshot)) error {
	if !s.running.TryLock() {
		return errors.New("following etcd: Watch is already running")
	}
	defer s.running.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages := make(chan client.Message, 16)
	scopes := client.Scopes(s.keys, s.options.Node)
	l := client.NewLink(s.options.Config, s.keys, scopes, s.timing, s.options.Log, messages)
	l.Inspects = true
	w := &watchRun{
		Source: s, scopes: scopes, publish: publish, leases: leases{link: l, answers: make(chan []leaseNews, 1)},
		reader: reader{keys: s.keys, defaults: s.options.Defaults}, state: state{keys: s.keys}, contact: contact{since: s.timing.Now()},
	}
	l.History = w.load()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { l.Run(ctx) })
	defer w.leases.asking.Wait()
	w.loop(ctx, messages)
	w.save()
	return nil
}

// watchRun is the state of one call to Watch. Only Watch's goroutine may use it.
type watchRun struct {
	*Source
	scopes  []client.Scope
	reader  reader
	publish func(store.Snapshot)
	leases  leases
	contact contact

	// loaded reports whether the state came from the file. kept is the state that was last written
	// to the file or read from it.
	loaded bool
	kept   state

	state state
	// wiped is published instead of state if etcd was wiped. Otherwise it is nil.
	wiped *wiped
	// reading is the full read in progress, or nil.
	reading *reading

	// pending holds the changes that are not published yet.
	pending burst
	// published is the last snapshot. publishedAt is when it was published, or zero if no snapshot
	// was published.
	published   store.Snapshot
	publishedAt time.Time
	trial       overlay            // the pending change that is or last was in effect
	configured  *schema.NodeConfig // the last configuration of this node that was passed on, or nil
}

// contact is the state of the connection.
type contact struct {
	// connected reports whether the state is followed. since is when the connection was lost, and
	// err is why.
	connected bool
	since     time.Time
	err       error
	// members holds the problems of failed members of etcd.
	members []balancer.Problem
}

// reading is the state that a full read builds, with the keys that it has read.
type reading struct {
	state
	read map[rawKey]bool
}

// loop processes messages, answers and timeouts until ctx ends.
func (w *watchRun) loop(ctx context.Context, messages <-chan client.Message) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(max(0, w.due().Sub(w.timing.Now())))
		select {
		case <-ctx.Done():
			return
		case m := <-messages:
			w.process(m)
			w.save()
		case defaults := <-w.defaults:
			w.decodeAgain(defaults)
		case news := <-w.leases.answers:
			w.answered(news)
		case <-ticker.C:
			w.leases.paused = false
			w.settleDue()
			w.save()
		case <-timer.C:
			w.publishDue()
		}
		if w.contact.connected {
			w.leases.ask(ctx, &w.state)
		}
	}
}

// process handles a message of the link.
func (w *watchRun) process(m client.Message) {
	switch {
	case m.Begin:
		w.reading = &reading{w.state, map[rawKey]bool{}}
	case m.Page != nil:
		w.processPage(m)
	case m.End:
		w.processEnd(m)
	case m.Events != nil:
		w.processEvents(m)
	case m.Steady:
		w.noteSteady()
	case m.Away != nil:
		w.noteAway(m.Away)
	case m.Members != nil:
		if !slices.Equal(w.contact.members, m.Members) {
			w.contact.members = m.Members
			w.changed()
		}
	}
}

func (w *watchRun) noteSteady() {
	if !w.contact.connected {
		w.options.Connection(w.state.Revision, nil)
	}
	w.contact.connected, w.contact.err = true, nil
	w.changed()
}

func (w *watchRun) noteAway(err error) {
	w.reading = nil
	c := &w.contact
	if c.connected {
		w.options.Connection(w.state.Revision, err)
		c.connected, c.since = false, w.timing.Now()
	}
	if c.err == nil || w.timing.Now().Sub(w.publishedAt) > w.timing.ErrorPause {
		c.err = err
		if !w.published.Connected && !w.publishedAt.IsZero() {
			w.changed()
		}
	}
}

// processPage adds a page to a full read.
func (w *watchRun) processPage(m client.Message) {
	now := w.timing.Now()
	for _, r := range w.reader.records(m.Page, func(key string) *record { return w.reading.records.At(rawKey(key)) }) {
		w.reading.read[rawKey(r.key)] = true
		w.reading.put(r, now)
	}
}

// processEnd ends a full read. It removes keys that were not read, except for keys in scopes that
// the user may not read.
func (w *watchRun) processEnd(m client.Message) {
	now := w.timing.Now()
	services := map[balancer.Name]bool{}
	for key, r := range w.state.records.All() {
		denied := func(s client.Scope) bool { return s.Holds(string(key)) }
		if !w.reading.read[key] && !slices.ContainsFunc(m.Denied, denied) {
			w.reading.remove(key, now)
			services[r.Of] = true
		}
	}
	for folder := range w.reading.counts.Keys() {
		services[serviceOf(w.keys, folder)] = true
	}
	for key := range w.reading.departed.Keys() {
		services[serviceOf(w.keys, key)] = true
	}
	for h := range w.reading.held.Keys() {
		services[h.service] = true
	}
	w.reading.deny(w.scopes, m.Denied, w.options.Config)
	before := w.state
	w.state, w.reading = w.reading.state, nil
	w.state.Revision, w.state.cluster = m.Revision, m.Cluster
	w.settle(services)
	if m.Another {
		w.keepServices(&before)
	}
	if w.state.Services != before.Services {
		w.refilled()
	}
	// This publishes the state of a single revision, before the watches report later changes at
	// different times.
	w.noteSteady()
	w.publishDue()
}

// serviceOf returns the service of a key, or of a folder that contains the endpoints or overrides
// of a service.
func serviceOf(keys schema.Keys, key rawKey) balancer.Name {
	s, _ := keys.Parse(string(key))
	return s.Of
}

func (w *watchRun) processEvents(m client.Message) {
	now := w.timing.Now()
	before := w.state.Services
	services := map[balancer.Name]bool{}
	for _, e := range m.Events {
		key := rawKey(e.Kv.Key)
		old := w.state.records.At(key)
		if old != nil {
			services[old.Of] = true
		}
		if e.Type == mvccpb.DELETE {
			w.state.remove(key, now)
			continue
		}
		r := w.reader.record(e.Kv, old)
		w.state.put(r, now)
		services[r.Of] = true
	}
	w.state.Revision = max(w.state.Revision, m.Revision)
	w.settle(services)
	if w.state.Services != before {
		w.refilled()
	}
}

func (w *watchRun) settle(services map[balancer.Name]bool) {
	now := w.timing.Now()
	for name := range services {
		if name != "" {
			w.state.settle(name, now)
		}
	}
	w.changed()
}

// settleDue settles the services whose vanished endpoints must be checked again.
func (w *watchRun) settleDue() {
	now, services := w.timing.Now(), map[balancer.Name]bool{}
	for name, a := range w.state.absences.All() {
		if !a.due.IsZero() && !now.Before(a.due) {
			services[name] = true
		}
	}
	if len(services) > 0 {
		w.settle(services)
	}
}

// decodeAgain decodes all services and the pending change again, with other defaults.
func (w *watchRun) decodeAgain(defaults map[string]any) {
	w.reader.defaults = defaults
	now := w.timing.Now()
	redo := func(s *state) {
		for _, r := range s.records.All() {
			if r.Kind == schema.ServiceKind || r.Kind == schema.PendingKind {
				s.put(w.reader.again(r), now)
			}
		}
	}
	redo(&w.state)
	if w.wiped != nil {
		redo(&w.wiped.state)
	}
	if w.reading != nil {
		redo(&w.reading.state)
	}
	w.changed()
}
