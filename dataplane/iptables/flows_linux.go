package iptables

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
)

// flows drops what conntrack would go on leading to a backend that is gone, or past a service that has come since:
// conntrack decides only once per flow where that goes. UDP clients go on sending, so theirs go with the change itself;
// connections are given their time, and end in a goroutine of their own, because looking for them takes longer than a
// change.
type flows struct {
	conn *conntrack.Conn
	log  *slog.Logger
	// ended is closed by close; running waits for the goroutine.
	ended   chan struct{}
	running sync.WaitGroup
	wake    chan struct{} // holds one token: due has changed

	mu      sync.Mutex // guards what follows
	started bool
	// wanted are the frontends that are carried out.
	wanted map[balancer.Key]*balancer.Frontend
	// due says when connections of a key have to be looked at.
	due map[balancer.Key]time.Time
	// leaving are keys that have lost their frontend, and until when connections to it may live on.
	leaving map[balancer.Key]time.Time
}

func newFlows(conn *conntrack.Conn, log *slog.Logger) *flows {
	return &flows{
		conn: conn, log: log, ended: make(chan struct{}), wake: make(chan struct{}, 1),
		wanted: map[balancer.Key]*balancer.Frontend{}, due: map[balancer.Key]time.Time{}, leaving: map[balancer.Key]time.Time{},
	}
}

// forgetFlows drops the flows that a batch has made stale. Keys of which it can't are noted in failed, and tried again.
func (d *Dataplane) forgetFlows(ctx context.Context, batch []dataplane.Change, failed dataplane.KeyErrors) {
	atOnce := d.flows.take(batch, failed, time.Now())
	if len(atOnce) == 0 {
		return
	}
	if _, err := d.flows.conn.Cut(ctx, atOnce, d.flows.judge(atOnce, time.Now())); err != nil {
		for k := range atOnce {
			failed[k] = err
		}
	}
}

// take notes a batch that was carried out but for what failed. It returns the keys whose flows have to go at once.
func (fl *flows) take(batch []dataplane.Change, failed dataplane.KeyErrors, now time.Time) map[balancer.Key]bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	atOnce := map[balancer.Key]bool{}
	for _, c := range batch {
		if failed[c.Key] != nil {
			continue
		}
		was := fl.wanted[c.Key]
		switch {
		case c.New != nil:
			fl.wanted[c.Key] = c.New
		default:
			delete(fl.wanted, c.Key)
		}
		switch {
		case c.Key.Proto == balancer.UDP:
			if c.New == nil || was == nil || movesFlows(was, c.New) {
				atOnce[c.Key] = true
			}
			fl.dueLocked(c.New, now)
		case c.New == nil && was == nil:
		case c.New == nil:
			until := now.Add(was.DrainTimeout)
			fl.leaving[c.Key], fl.due[c.Key] = until, until
		case was == nil || losesBackend(was, c.New):
			fl.due[c.Key] = now
		default:
			fl.dueLocked(c.New, now)
		}
	}
	if len(fl.due) > 0 {
		fl.startLocked()
	}
	return atOnce
}

// movesFlows reports whether some flow of was may be wrong for next.
func movesFlows(was, next *balancer.Frontend) bool {
	return losesBackend(was, next) || !was.Serves() && next.Serves()
}

func losesBackend(was, next *balancer.Frontend) bool {
	return slices.ContainsFunc(was.Backends, func(b balancer.Backend) bool { return backend(next, b) == nil })
}

// backend finds b among those of f.
func backend(f *balancer.Frontend, b balancer.Backend) *balancer.Backend {
	for i := range f.Backends {
		if f.Backends[i].Addr == b.Addr {
			return &f.Backends[i]
		}
	}
	return nil
}

// dueLocked arranges for f to be looked at when the time of the first of its backends ends.
func (fl *flows) dueLocked(f *balancer.Frontend, now time.Time) {
	if f == nil {
		return
	}
	for _, b := range f.Backends {
		if at, ok := fl.due[f.Key]; b.Until.After(now) && (!ok || b.Until.Before(at)) {
			fl.due[f.Key] = b.Until
		}
	}
}

// judge returns what tells stale flows of keys.
func (fl *flows) judge(keys map[balancer.Key]bool, now time.Time) func(*conntrack.Flow) bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	wanted, kept := map[balancer.Key]*balancer.Frontend{}, map[balancer.Key]bool{}
	for k := range keys {
		wanted[k] = fl.wanted[k]
		kept[k] = fl.leaving[k].After(now)
	}
	return func(flow *conntrack.Flow) bool {
		k := flow.Frontend()
		return stale(flow, wanted[k], kept[k], now)
	}
}

// stale reports whether a flow to a frontend has to go; f is nil where there is none any more. kept: connections of an
// earlier frontend on the key still have time.
func stale(flow *conntrack.Flow, f *balancer.Frontend, kept bool, now time.Time) bool {
	if !flow.Status.Has(conntrack.DstNAT) {
		// It began before the service was there. A connection that was answered is somebody else's.
		return f != nil && f.Serves() && (f.Proto == balancer.UDP || !flow.Status.Has(conntrack.SeenReply))
	}
	if f != nil {
		if b := backend(f, balancer.Backend{Addr: flow.Backend()}); b != nil {
			return !b.Until.IsZero() && !b.Until.After(now)
		}
	}
	return !kept || flow.Proto == balancer.UDP
}

// startLocked starts the goroutine, or has it look at what is due.
func (fl *flows) startLocked() {
	if !fl.started {
		fl.started = true
		fl.running.Go(fl.run)
	}
	select {
	case fl.wake <- struct{}{}:
	default:
	}
}

// retryCut is the time until what conntrack refused is tried again.
const retryCut = time.Second

func (fl *flows) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-fl.ended; cancel() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-fl.ended:
			return
		case <-fl.wake:
		case <-timer.C:
		}
		if next := fl.sweep(ctx, time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// sweep drops what is due, and returns when something is due again.
func (fl *flows) sweep(ctx context.Context, now time.Time) (next time.Time) {
	fl.mu.Lock()
	keys := map[balancer.Key]bool{}
	for k, at := range fl.due {
		if !at.After(now) {
			keys[k] = true
		}
	}
	fl.mu.Unlock()
	var err error
	if len(keys) > 0 {
		_, err = fl.conn.Cut(ctx, keys, fl.judge(keys, now))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fl.log.Warn("ending connections to endpoints that are gone; trying again", "err", err)
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for k := range keys {
		switch {
		case fl.due[k].After(now): // something has come since
		case err != nil:
			fl.due[k] = now.Add(retryCut)
		default:
			delete(fl.due, k)
			fl.dueLocked(fl.wanted[k], now)
		}
	}
	maps.DeleteFunc(fl.leaving, func(_ balancer.Key, until time.Time) bool { return !until.After(now) })
	for _, at := range fl.due {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// close ends the goroutine. Connections that still have time keep it for ever: nobody is left to end them.
func (fl *flows) close() error {
	close(fl.ended)
	fl.running.Wait()
	return fl.conn.Close()
}
