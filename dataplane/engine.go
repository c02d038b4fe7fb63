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

// Options configure an Engine. Dataplane, Host and Log are required; the other fields have
// defaults.
type Options struct {
	Dataplane Dataplane
	Host      Host
	Log       *slog.Logger
	// Metrics receives every round; nil means no receiver.
	Metrics Metrics
	// Trace is called with each round that had work, unless it is nil. One goroutine calls it. It
	// must not block.
	Trace func(*Round)
	// MinInterval is the minimum time between rounds. The first change after a pause is applied at
	// once. Default 100ms.
	MinInterval time.Duration
	// ProbeInterval is the time between cheap checks for damage. Default 1s.
	ProbeInterval time.Duration
	// ResyncInterval is the time between full comparisons. Default 10m.
	ResyncInterval time.Duration
	// RetryMin and RetryMax bound the backoff of a failure. Defaults 500ms and 1m.
	RetryMin, RetryMax time.Duration
}

// Metrics receives an engine's measurements. One goroutine calls its methods. They must not block.
type Metrics interface {
	// Synced reports a round that had work. It was full if it started with Observe. Changes is the
	// number of applied keys.
	Synced(full bool, took time.Duration, changes int, failed bool)
	// Programmed reports the time from the source's change until it was applied.
	Programmed(latency time.Duration)
	// Repaired reports n objects that another program had changed, and the first damage that was
	// noticed.
	Repaired(n int, what string)
}

// Engine applies the state that was last Set to a dataplane and its host. No other loop writes to
// them.
//
//  1. Nothing is written before the first Set, which is the first complete state.
//  2. Start, change, retry, drift and comparison use one path: a round compares the applied state with the desired state,
//     and applies the difference. The applied state is read by Observe at start, after damage and at every resync.
//  3. Work grows with the difference, because both sides are snap.Maps.
//  4. A bad frontend never blocks the others: a failing batch is halved until the bad frontends are alone. Each waits
//     for its own backoff, and everything else continues.
//  5. A burst of changes needs few rounds, because rounds are at least MinInterval apart.
//  6. Another dataplane takes over without a gap: see [Engine.Switch].
type Engine struct {
	Options
	board
	target target
	wake   wake.Signal // holds a token if the target has changed
	busy   activity

	// The goroutine of Run owns the rest.
	applied applied
	compare comparison
	whole   backoff // of failures that are not about single keys
	watch   watch
	repairs repairs
	report  Status      // the next state to publish
	steps   []Step      // the present round, for Trace
	moving  *succession // the switch in progress; nil means none
}

// NewEngine returns an engine. It does nothing until Run.
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

// Wanted returns the state that was last Set.
func (e *Engine) Wanted() (d balancer.Desired, isSet bool) { return e.target.get() }

// Behind returns the time since which the desired state is not applied, except frontends in
// backoff. Zero means that it is applied.
func (e *Engine) Behind() time.Time { return e.target.since() }

// Resync requests a full comparison.
func (e *Engine) Resync() {
	e.target.requestComparison()
	e.wake.Send()
}

// Compare makes the engine compare everything with the existing state, and repair differences. Then
// it returns the status. An error says why the engine could not compare. Before the first Set,
// there is nothing to compare.
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

// Working returns the time for which the loop has worked on the same batch or check. Zero means
// that it is idle. A loop that works for long hangs in a call of the dataplane or the host.
func (e *Engine) Working() time.Duration { return e.busy.length() }

// Run applies the state that was Set until ctx ends, and returns nil. It does not close the
// dataplane.
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
			if !e.look(ctx) {
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
		next := e.whole.due // until then, single keys also wait
		if next.IsZero() {
			next = e.applied.nextRetry()
		}
		if !next.IsZero() {
			retry.Reset(time.Until(next))
		}
	}
}

// activity is the time for which the loop has worked on the same batch or check. Any goroutine may
// read it.
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
