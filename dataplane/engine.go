package dataplane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
)

// Options are what an Engine is made of. Dataplane, Host and Log are needed; the rest has defaults.
type Options struct {
	Dataplane Dataplane
	Host      Host
	Log       *slog.Logger
	// Metrics hears of every sync; nil means there are none.
	Metrics Metrics
	// Trace hears of each round that had work; nil means there is none. It is called by one goroutine and must not block.
	Trace func(*Round)
	// MinInterval spaces syncs; the first change after quiet is applied at once. Default 100ms.
	MinInterval time.Duration
	// ProbeInterval is the time between cheap looks whether everything is still there. Default 1s.
	ProbeInterval time.Duration
	// ResyncInterval is the time between full comparisons. Default 10m.
	ResyncInterval time.Duration
	// RetryMin and RetryMax bound the growing, jittered wait before what failed is tried again. Defaults 500ms and 1m.
	RetryMin, RetryMax time.Duration
}

// Metrics is what an engine reports to. Its methods are called by one goroutine and must not block.
type Metrics interface {
	// Synced tells of a sync that had work: full after an Observe, else partial; changes is how many keys were applied.
	Synced(full bool, took time.Duration, changes int, failed bool)
	// Programmed tells how long after it was seen a change was applied.
	Programmed(latency time.Duration)
	// Repaired tells of n things of ours that another program had broken or removed, and what was noticed first; "" where
	// that is frontends alone.
	Repaired(n int, what string)
}

// Engine makes a dataplane and its host what was last Set. It is the only loop that writes to them.
//
// Goals, and how each is met:
//  1. Nothing is written before the first Set, which is the first complete state.
//  2. One path for start, change, retry, drift and comparison: a sync compares what is done with what is wanted, and
//     applies the difference. What is done is rebuilt from Observe at start, after damage and at every resync.
//  3. Work grows with the difference: both sides are snap.Maps.
//  4. One bad frontend never blocks the others: a failing batch is halved until the bad ones are alone, and those wait
//     out their own backoff, while everything else goes on.
//  5. A burst costs few syncs: they are at least MinInterval apart. A change after quiet does not wait.
//  6. Another dataplane takes over without a gap: see Switch.
type Engine struct {
	Options
	wake  wake.Signal // holds one token: look again
	began time.Time   // with its monotonic reading

	mu     sync.Mutex // guards the rest of this block
	wanted balancer.Desired
	isSet  bool
	next   *succession // asked for, not yet begun
	behind time.Time   // since when wanted is not applied; zero means it is
	asks   int         // counts what was wanted

	status  atomic.Pointer[Status]
	changed atomic.Pointer[chan struct{}] // closed at the next change of status
	asked   atomic.Bool                   // a full comparison was asked for
	works   atomic.Int64                  // how long after began the loop began what it is at, in nanoseconds; 0: it rests

	// The rest belongs to the goroutine of Run.
	doing      int // which of asks this round is about
	done       snap.Map[balancer.Key, *balancer.Frontend]
	retries    map[balancer.Key]*retry
	wholeDue   time.Time // when what is not about single keys is to be tried again; zero means it is in order
	wholeTries int
	resync     bool   // the next sync observes first
	addresses  bool   // ... and compares addresses and routes, too
	repair     bool   // what the next Observe finds missing was broken by another program
	damage     string // what was noticed of that
	broken     broken // what was found broken, and is not mended yet
	report     Status
	steps      []Step // of this round, where Trace hears of it
	// moving is the switch that is going on, if any, and serving what the dataplane before it applied when it began.
	moving  *succession
	serving snap.Map[balancer.Key, *balancer.Frontend]
	// gone are frontends that were removed, while connections to them have time.
	gone map[balancer.Key]departure

	alertDue   time.Time // until then alerts wait
	probeDue   time.Time // when to look again after damage that was not mended
	probeTries int
	probeError string // of the last look, to be logged once
}

// NewEngine returns an engine that does nothing until Run.
func NewEngine(o Options) *Engine {
	o.MinInterval = cmp.Or(o.MinInterval, 100*time.Millisecond)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, time.Second)
	o.ResyncInterval = cmp.Or(o.ResyncInterval, 10*time.Minute)
	o.RetryMin = cmp.Or(o.RetryMin, 500*time.Millisecond)
	o.RetryMax = cmp.Or(o.RetryMax, time.Minute)
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	e := &Engine{Options: o, wake: wake.New(), retries: map[balancer.Key]*retry{}, gone: map[balancer.Key]departure{}, resync: true, addresses: true}
	e.status.Store(&Status{})
	changed := make(chan struct{})
	e.changed.Store(&changed)
	e.began = time.Now()
	return e
}

// Set makes d the state that is wanted. It never blocks; the engine gets round to it.
func (e *Engine) Set(d balancer.Desired) {
	e.mu.Lock()
	if e.isSet && !e.wanted.Revision.Seen.IsZero() && e.status.Load().Applied.Seen != e.wanted.Revision.Seen {
		d.Revision.Seen = e.wanted.Revision.Seen // still waiting: the oldest change that is not applied
	}
	e.wantLocked(d)
	e.mu.Unlock()
	e.wake.Send()
}

// wantLocked makes d what is wanted.
func (e *Engine) wantLocked(d balancer.Desired) {
	e.wanted, e.isSet = d, true
	e.asks++
	if e.behind.IsZero() {
		e.behind = time.Now()
	}
}

// Behind returns since when what is wanted is not applied, frontends in backoff aside; zero means it is.
func (e *Engine) Behind() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.behind
}

// fellBehind notes that what is wanted could not be applied, or mended, in a round that began at started.
func (e *Engine) fellBehind(started time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.behind.IsZero() {
		e.behind = started
	}
}

// caughtUp notes that a round which began at started has applied what was wanted then.
func (e *Engine) caughtUp(started time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.behind = time.Time{}
	if e.asks != e.doing {
		e.behind = started // or a little later
	}
}

// Resync asks for a full comparison soon.
func (e *Engine) Resync() {
	e.asked.Store(true)
	e.wake.Send()
}

// Compare has the engine compare everything with what is there now, and mend what differs; then it returns how far the
// engine is. An error says why it could not compare. Before the first Set there is nothing to compare.
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

// Wanted returns what was last Set.
func (e *Engine) Wanted() (balancer.Desired, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted, e.isSet
}

// Working returns for how long the loop has been at one batch of changes, or one look; 0 means that it rests. A loop that is long at one
// hangs in a call into the dataplane or the host.
func (e *Engine) Working() time.Duration {
	if since := e.works.Load(); since != 0 {
		return time.Since(e.began) - time.Duration(since)
	}
	return 0
}

// begins notes that the loop is at work on something else than before, on the monotonic clock.
func (e *Engine) begins() { e.works.Store(max(1, int64(time.Since(e.began)))) }

// rests notes that it waits for work.
func (e *Engine) rests() { e.works.Store(0) }

// Run applies what is Set until ctx ends, and returns nil then. It leaves the dataplane as it is: closing that is
// up to its maker.
func (e *Engine) Run(ctx context.Context) error {
	probe := time.NewTicker(e.ProbeInterval)
	defer probe.Stop()
	resync := time.NewTicker(e.ResyncInterval)
	defer resync.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	alerts, ended := e.alerts(ctx)
	defer ended()
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	for {
		e.rests()
		select {
		case <-ctx.Done():
			return nil
		case <-alerts:
			late.Reset(time.Until(e.alertDue))
			continue
		case <-late.C:
			if !e.alerted(ctx) {
				continue
			}
		case <-e.wake:
			if e.asked.Swap(false) {
				e.resync, e.addresses = true, true
			}
		case <-retry.C:
		case <-resync.C:
			e.resync, e.addresses = true, true
		case <-probe.C:
			if !e.damaged(ctx) {
				continue
			}
		}
		want, isSet := e.begin()
		if !isSet {
			continue
		}
		started := time.Now()
		e.begins()
		e.sync(ctx, want)
		if !e.rest(ctx, started) {
			return nil
		}
		if next := e.nextRetry(); !next.IsZero() {
			retry.Reset(time.Until(next))
		}
	}
}

// alerts returns a channel on which the host asks the engine to look, and what waits for the end of that, when ctx has ended.
func (e *Engine) alerts(ctx context.Context) (told <-chan struct{}, ended func()) {
	alerts, done := wake.New(), make(chan struct{})
	go func() {
		defer close(done)
		e.Host.Alerts(ctx, alerts.Send)
	}()
	return alerts, func() { <-done }
}

// alertShare is how many times as long as a look takes the engine waits after it until an alert makes it look again:
// others may change rules all the time.
const alertShare = 20

// alerted is damaged, after an alert.
func (e *Engine) alerted(ctx context.Context) bool {
	began := time.Now()
	defer func() { e.alertDue = time.Now().Add(alertShare * time.Since(began)) }()
	return e.damaged(ctx)
}

// rest waits until MinInterval after started; false: ctx has ended.
func (e *Engine) rest(ctx context.Context, started time.Time) bool {
	e.rests()
	return wake.Sleep(ctx, time.Until(started.Add(e.MinInterval)))
}

// damaged looks whether anything of ours is missing, and arranges for the next sync to mend it. While each look finds
// damage, looks become rarer, because mending is a full comparison. One who takes things away one by one, as a script
// does, is met within two seconds up to the fifth.
func (e *Engine) damaged(ctx context.Context) bool {
	if !e.report.Ready || time.Now().Before(e.probeDue) {
		return false
	}
	e.begins()
	reason, err := e.Dataplane.Intact(ctx)
	if reason == "" { // one that can't be looked at does not keep the other from it
		var alsoErr error
		reason, alsoErr = e.Host.Intact(ctx)
		err = errors.Join(err, alsoErr)
		e.addresses = e.addresses || reason != ""
		e.mended()
	}
	switch {
	case ctx.Err() != nil:
		return false
	case reason == "" && err != nil:
		if text := err.Error(); text != e.probeError {
			e.probeError = text
			e.Log.Warn("looking whether everything is still there", "err", err)
		}
		return false
	case reason == "":
		e.probeError, e.probeTries, e.probeDue = "", 0, time.Time{}
		return false
	}
	if e.probeTries++; e.probeTries > 1 {
		e.probeDue = time.Now().Add(e.backoff(e.probeTries - 1))
	}
	e.resync, e.repair, e.damage = true, true, reason
	return true
}

// mended tells of what the host has mended by itself.
func (e *Engine) mended() {
	if all := e.Host.Mended(); len(all) > 0 {
		e.report.Repairs += len(all)
		e.Metrics.Repaired(len(all), strings.Join(all, "; "))
		e.publish()
	}
}
