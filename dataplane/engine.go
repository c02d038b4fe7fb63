package dataplane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
)

// Options configures an Engine. Dataplane, Host and Log are required. The other fields have
// defaults.
type Options struct {
	Dataplane Dataplane
	Host      Host
	Log       *slog.Logger
	// Metrics receives measurements of every round. It may be nil.
	Metrics Metrics
	// Trace is called with each round that did work. It may be nil. Calls do not overlap, and Trace
	// must not block.
	Trace func(*Round)
	// MinInterval is the minimum time between rounds. The first change after a pause is applied
	// immediately. The default is 100 ms.
	MinInterval time.Duration
	// ProbeInterval is the time between cheap checks for damage. The default is 1 s.
	ProbeInterval time.Duration
	// ResyncInterval is the time between full comparisons. The default is 10 min.
	ResyncInterval time.Duration
	// RetryMin and RetryMax are the minimum and maximum backoff after a failure. The defaults are
	// 500 ms and 1 min.
	RetryMin, RetryMax time.Duration
}

// Metrics receives an engine's measurements. Calls to its methods do not overlap, and the methods
// must not block.
type Metrics interface {
	// Synced reports a round that did work, and its duration. full reports whether the round
	// started with Observe. changes is the number of applied keys.
	Synced(full bool, took time.Duration, changes int, failed bool)
	// Programmed reports how long it took from a change in the source until the change was applied.
	Programmed(latency time.Duration)
	// Repaired reports the repair of n objects that another program had changed. what describes the
	// first damage.
	Repaired(n int, what string)
}

// Engine applies the state of the last Set to a dataplane and its host. Nothing else writes to the
// dataplane or the host.
//
//  1. Nothing is written before the first Set, which is the first complete state.
//  2. Start, change, retry, drift and comparison use one path: a round compares the applied state with the desired state,
//     and applies the difference. The applied state is read by Observe at start, after damage and at every resync.
//  3. Work grows with the difference, because both sides are snap.Maps.
//  4. A bad frontend never blocks the others: a failing batch is halved until each bad frontend is alone. It then waits
//     for its own backoff, and everything else continues.
//  5. A burst of changes needs few rounds, because rounds are at least MinInterval apart.
//  6. Another dataplane takes over without a gap: see [Engine.Switch].
type Engine struct {
	Options
	board
	target target
	wake   wake.Signal // sent when the target has changed
	busy   activity

	// Run's goroutine owns the fields below.
	applied applied
	compare comparison
	whole   backoff // backoff after failures that are not specific to one key
	watch   watch
	repairs repairs
	report  Status      // the next status to publish
	steps   []Step      // steps of the current round, for Trace
	moving  *succession // the switch in progress, or nil
}

// NewEngine returns an engine. The engine does nothing until Run is called.
func NewEngine(o Options) *Engine {
	o.MinInterval = cmp.Or(o.MinInterval, 100*time.Millisecond)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, time.Second)
	o.ResyncInterval = cmp.Or(o.ResyncInterval, 10*time.Minute)
	o.RetryMin = cmp.Or(o.RetryMin, 500*time.Millisecond)
	o.RetryMax = cmp.Or(o.RetryMax, time.Minute)
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	e := &Engine{Options: o, wake: wake.New(), applied: newApplied(), compare: comparison{due: true, addresses: true}}
	e.publish(Status{})
	return e
}

// Set makes d the desired state. It never blocks.
func (e *Engine) Set(d balancer.Desired) {
	e.target.set(d, nil, e.Status().Applied.Seen)
	e.wake.Send()
}

// Wanted returns the state of the last Set.
func (e *Engine) Wanted() (d balancer.Desired, isSet bool) { return e.target.get() }

// Behind returns when the engine fell behind the desired state, ignoring frontends in backoff. It
// returns zero if the desired state is applied.
func (e *Engine) Behind() time.Time { return e.target.since() }

// Resync requests a full comparison.
func (e *Engine) Resync() {
	e.target.requestComparison()
	e.wake.Send()
}

// Compare makes the engine compare everything with the existing state and repair differences, and
// then returns the status. It returns an error if the comparison failed. Before the first Set, it
// returns immediately.
func (e *Engine) Compare(ctx context.Context) (*Status, error) {
	asked := time.Now()
	if _, isSet := e.Wanted(); isSet {
		e.Resync()
	}
	for {
		changed := e.Changed()
		s := e.Status()
		if _, isSet := e.Wanted(); !isSet || s.Compared.After(asked) {
			return s, nil
		}
		if began := s.Last.Add(-s.LastDuration); s.LastFull && s.LastError != "" && began.After(asked) {
			return nil, errors.New(s.LastError)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

// Working returns the time that the loop has spent on the current batch or check, or zero if the
// loop is idle. After a long time, the call to the dataplane or the host probably hangs.
func (e *Engine) Working() time.Duration { return e.busy.length() }

// Run applies the state of the last Set until ctx is done, and then returns nil. It does not close
// the dataplane.
func (e *Engine) Run(ctx context.Context) error {
	resync := time.NewTicker(e.ResyncInterval)
	defer resync.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	e.watch.start(e.ProbeInterval)
	defer e.watch.timer.Stop()
	alerts, ended := wake.New(), make(chan struct{})
	go func() {
		defer close(ended)
		e.Host.Alerts(ctx, alerts.Send)
	}()
	defer func() { <-ended }()
	for {
		e.busy.stop()
		select {
		case <-ctx.Done():
			return nil
		case <-alerts:
			e.watch.hurry()
			continue
		case <-e.watch.timer.C:
			if !e.checkDamage(ctx) {
				continue
			}
		case <-e.wake:
		case <-retry.C:
		case <-resync.C:
			e.compare.due, e.compare.addresses = true, true
		}
		asked := e.target.take()
		if asked.compare {
			e.compare.due, e.compare.addresses = true, true
		}
		if asked.next != nil {
			e.startSwitch(asked.next)
		}
		if !asked.isSet {
			continue
		}
		started := time.Now()
		e.busy.start()
		e.sync(ctx, asked.desired, started)
		e.busy.stop()
		if !wake.Sleep(ctx, time.Until(started.Add(e.MinInterval))) {
			return nil
		}
		next := e.whole.due // a retry of a single key also waits until then
		if next.IsZero() {
			next = e.applied.nextRetry()
		}
		if !next.IsZero() {
			retry.Reset(time.Until(next))
		}
	}
}

// activity measures how long the loop has been busy with the current batch or check. It is safe for
// concurrent use.
type activity struct{ since atomic.Pointer[time.Time] } // nil means that the loop is idle

func (a *activity) start() {
	now := time.Now()
	a.since.Store(&now)
}

func (a *activity) stop() { a.since.Store(nil) }

func (a *activity) length() time.Duration {
	if since := a.since.Load(); since != nil {
		return time.Since(*since)
	}
	return 0
}

type noMetrics struct{}

func (noMetrics) Synced(bool, time.Duration, int, bool) {}
func (noMetrics) Programmed(time.Duration)              {}
func (noMetrics) Repaired(int, string)                  {}
