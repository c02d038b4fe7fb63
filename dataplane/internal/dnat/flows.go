package dnat

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/worker"
)

// Flows drops what conntrack would go on leading to a backend that is gone, or past a service that has come since:
// conntrack decides only once per flow where that goes. UDP clients go on sending, so theirs go with the change itself;
// connections are given their time, and end in their own goroutine, because looking for them takes longer than a
// change.
//
// It is a part of Tracker, and serves alone where the kernel tracks connections by itself, as virtual servers do. Those end their
// own connections with their destinations, but not flows that began before there was a virtual server, nor connections of
// another mode that was in use before, which conntrack leads to their endpoints ahead of it.
type Flows struct {
	conn Cutter
	log  *slog.Logger
	loop *worker.Loop
	// own is set where this process ends connections: it tells this host's addresses, to which redirects lead.
	own func(netip.Addr) bool

	mu sync.Mutex // guards what follows
	// wanted are the frontends that are applied.
	wanted map[balancer.Key]*balancer.Frontend
	// due says when connections of a key have to be looked at.
	due map[balancer.Key]time.Time
	// leaving are keys with connections of a frontend that is gone.
	leaving map[balancer.Key]*leave
	// found are the keys that an earlier process has left, until they are wanted.
	found map[balancer.Key]bool
	// uncut are keys of UDP whose flows have to go with the next change, because they could not with the last.
	uncut map[balancer.Key]bool
	// pause is the time between sweeps.
	pause time.Duration
	// forget is when what is no longer needed is dropped: to look takes as long as there are keys.
	forget time.Time
}

// Cutter is conntrack.Conn.
type Cutter interface {
	Cut(ctx context.Context, keys map[balancer.Key]bool, stale func(*conntrack.Flow) bool) (int, error)
	Close() error
}

// leave is what there is still to do for the connections of an earlier frontend of a key.
type leave struct {
	// until is when their time ends.
	until time.Time
	// port is what their bytes are counted to; zero: another mode has served, which counts and lists what it serves.
	port counters.Port
	// since are the backends of later frontends of the key: connections to these are theirs.
	since map[netip.AddrPort]bool
}

// has reports whether a connection to b is an earlier frontend's.
func (l *leave) has(b netip.AddrPort) bool { return l != nil && !l.since[b] }

// counts reports whether a connection to b is one of an earlier frontend of rules like these.
func (l *leave) counts(b netip.AddrPort) bool { return l.has(b) && l.port != (counters.Port{}) }

// keeps reports whether a connection to b still has time.
func (l *leave) keeps(b netip.AddrPort, now time.Time) bool { return l.has(b) && l.until.After(now) }

// lastWords is how long after its time a leave is remembered: the kernel tells the end of a flow after it was cut.
const lastWords = 10 * time.Second

// NewFlows begins to work with the first Applied. Close closes conn.
func NewFlows(conn Cutter, log *slog.Logger) *Flows {
	fl := &Flows{
		conn: conn, log: log,
		wanted: map[balancer.Key]*balancer.Frontend{}, due: map[balancer.Key]time.Time{}, leaving: map[balancer.Key]*leave{},
		found: map[balancer.Key]bool{}, uncut: map[balancer.Key]bool{}, pause: leastPause,
	}
	fl.loop = worker.New(fl.sweep)
	return fl
}

// find takes in what is there: connections to frontends of an earlier process may be of a time when they were others.
func (fl *Flows) find(there map[balancer.Key]dataplane.Digest) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	clear(fl.found)
	for k := range there {
		if fl.wanted[k] == nil {
			fl.found[k] = true
		}
	}
}

// cut notes what has come of the flows that had to go at once.
func (fl *Flows) cut(keys map[balancer.Key]bool, err error) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	for k := range keys {
		if err != nil {
			fl.uncut[k] = true
		} else {
			delete(fl.uncut, k)
		}
	}
}

// Applied takes in a batch of which all but the keys in failed are in the kernel. Flows that have to go at once go soon.
func (fl *Flows) Applied(batch []dataplane.Change, failed dataplane.KeyErrors) {
	atOnce := fl.take(batch, failed)
	fl.mu.Lock()
	for k := range atOnce {
		fl.due[k] = time.Now()
	}
	fl.mu.Unlock()
	fl.loop.Look()
}

// take notes a batch that was applied but for what failed. It returns the keys whose flows have to go at once.
func (fl *Flows) take(batch []dataplane.Change, failed dataplane.KeyErrors) map[balancer.Key]bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	now := time.Now() // under the lock, so that it is later than that of a sweep that has begun
	fl.forgetLocked(now)
	atOnce := map[balancer.Key]bool{}
	for _, c := range batch {
		if failed[c.Key] != nil {
			continue
		}
		was := cmp.Or(fl.wanted[c.Key], c.Old)
		if c.New == nil {
			fl.leaveLocked(c.Key, cmp.Or(c.Old, was), now) // a new drain timeout alone is no change: Old has the last one
		} else {
			fl.wantLocked(c.New, was, now)
		}
		if c.Key.Proto == balancer.UDP && (c.New == nil || was == nil || movesFlows(was, c.New, now) || fl.uncut[c.Key]) {
			atOnce[c.Key] = true
		}
	}
	if len(fl.due) > 0 {
		fl.loop.Look()
	}
	return atOnce
}

// leaveLocked notes that a key has lost its frontend; was is nil where none is known.
func (fl *Flows) leaveLocked(k balancer.Key, was *balancer.Frontend, now time.Time) {
	delete(fl.wanted, k)
	delete(fl.found, k)
	if was == nil {
		return
	}
	l := &leave{until: now, port: counters.Port{Service: was.Service, Name: was.Port}}
	fl.leaving[k] = l
	if k.Proto != balancer.UDP {
		l.until = now.Add(was.DrainTimeout)
		fl.due[k] = fl.togetherLocked(l.until)
	}
}

// wantLocked notes that f is applied in place of was, which is nil where none is known.
func (fl *Flows) wantLocked(f, was *balancer.Frontend, now time.Time) {
	k := f.Key
	fl.wanted[k] = f
	if k.Proto != balancer.UDP && (fl.found[k] || was == nil && fl.leaving[k] == nil) {
		// Endpoints may have gone while vipd was down, or another mode has served: those connections have the time that they
		// would have had there.
		l := &leave{until: now.Add(f.DrainTimeout)}
		if fl.found[k] {
			l.port = counters.Port{Service: f.Service, Name: f.Port}
		}
		fl.leaving[k] = l
	}
	delete(fl.found, k)
	if l := fl.leaving[k]; l != nil {
		if l.since == nil {
			l.since = map[netip.AddrPort]bool{}
		}
		for _, b := range f.Backends {
			l.since[b.Addr] = true
		}
	}
	if k.Proto != balancer.UDP && (was == nil || movesFlows(was, f, now)) {
		fl.due[k] = fl.togetherLocked(now)
	}
	fl.dueLocked(k, now)
}

// movesFlows reports whether some flow of was may be wrong for next: one to a backend that stops, or, if there was none, one to nobody. What
// the host's own clients open to a frontend without backends is refused when conntrack has noted it, and a port that is used again within its
// time would be refused again.
func movesFlows(was, next *balancer.Frontend, now time.Time) bool {
	return stopsBackend(was, next, now) || !was.Serves() && next.Serves()
}

// stopsBackend reports whether next gives no new connections to a backend of was that had some, lacks a backend of was, or has
// ended the time of its connections. A backend that is removed after its time may have been removed during an earlier search.
func stopsBackend(was, next *balancer.Frontend, now time.Time) bool {
	return slices.ContainsFunc(was.Backends, func(b balancer.Backend) bool {
		is := next.Backend(b.Addr)
		return is == nil || is.Expired(now) && !b.Expired(now) || is.State != balancer.Active && b.State == balancer.Active
	})
}

// A sweep walks all of conntrack's table, which takes the kernel 9 ms where it is empty, and little more for many keys than for one.
// Sweeps begin at least leastPause apart, and take at most one part in sweepShare of the time, but are no further than mostPause apart.
const (
	sweepShare = 20
	leastPause = 100 * time.Millisecond
	mostPause  = time.Second
)

// togetherLocked is the first time from t on at which sweeps begin, so that changes within a moment have one in common.
func (fl *Flows) togetherLocked(t time.Time) time.Time {
	if early := t.Sub(t.Truncate(fl.pause)); early > 0 {
		return t.Add(fl.pause - early) // not Truncate's result, which a clock that is set moves
	}
	return t
}

// dueLocked arranges for a key to be looked at when the time of the first of its backends, or of an earlier frontend's
// connections, ends.
func (fl *Flows) dueLocked(k balancer.Key, now time.Time) {
	end := func(until time.Time) {
		if at, ok := fl.due[k]; until.After(now) && (!ok || fl.togetherLocked(until).Before(at)) {
			fl.due[k] = fl.togetherLocked(until)
		}
	}
	if f := fl.wanted[k]; f != nil {
		for _, b := range f.Backends {
			end(b.Until)
		}
	}
	if l := fl.leaving[k]; l != nil {
		end(l.until)
	}
}

// forgetLocked drops what is no longer needed.
func (fl *Flows) forgetLocked(now time.Time) {
	if now.Before(fl.forget) {
		return
	}
	fl.forget = now.Add(lastWords)
	maps.DeleteFunc(fl.leaving, func(_ balancer.Key, l *leave) bool { return l.until.Add(lastWords).Before(now) })
}

// judge returns what tells stale flows, by what is wanted when it is asked: while conntrack is searched a frontend may return, and
// flows begin that are right.
func (fl *Flows) judge(now time.Time) func(*conntrack.Flow) bool {
	return func(flow *conntrack.Flow) bool {
		fl.mu.Lock()
		defer fl.mu.Unlock()
		k := flow.Frontend()
		f := fl.wanted[k]
		switch {
		case fl.own != nil && fl.isOwnLocked(flow):
			return false
		case fl.own != nil && f != nil && f.Serves() && k.Proto == balancer.UDP:
			return true // its client, which goes on sending, belongs here
		case (f == nil || f.Backend(flow.Backend()) == nil) && isAccepted(flow):
			return false
		}
		return stale(flow, f, fl.leaving[k].keeps(flow.Backend(), now), now)
	}
}

// isOwnLocked reports whether a flow leads to a socket of this process.
func (fl *Flows) isOwnLocked(flow *conntrack.Flow) bool {
	if !flow.Status.Has(conntrack.DstNAT) {
		return true
	}
	f := fl.wanted[flow.Frontend()]
	return (f == nil || f.Backend(flow.Backend()) == nil) && fl.own(flow.Backend().Addr())
}

// leads reports whether conntrack leads a flow from a frontend that is or was applied to where a mode that translates addresses has.
func (fl *Flows) leads(flow *conntrack.Flow) bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	k := flow.Frontend()
	known := fl.wanted[k] != nil || fl.leaving[k] != nil
	return known && flow.Status.Has(conntrack.DstNAT) && (fl.own == nil || !fl.isOwnLocked(flow))
}

// again has the flows of UDP be looked at, where they belong to this process.
func (fl *Flows) again() {
	if fl.own == nil {
		return
	}
	fl.mu.Lock()
	for k := range fl.wanted {
		if k.Proto == balancer.UDP {
			fl.due[k] = time.Now()
		}
	}
	fl.mu.Unlock()
	fl.loop.Look()
}

// stale reports whether a flow to a frontend has to go; f is nil where there is none any more. kept: it is an earlier
// frontend's, and still has time. A flow without an answer goes as soon as its backend gets no new connections: the client
// tries again, and is led to another backend.
func stale(flow *conntrack.Flow, f *balancer.Frontend, kept bool, now time.Time) bool {
	if !flow.Status.Has(conntrack.DstNAT) && flow.Backend() == flow.Orig.Dst {
		// It began before the service was there. A connection that was answered is not vipd's. With dr and tunnel, conntrack
		// has nothing to change, and no answer comes by that would tell one flow from another.
		direct := f != nil && (f.Forward == balancer.DRForward || f.Forward == balancer.TunnelForward)
		return f != nil && !direct && f.Serves() && (f.Proto == balancer.UDP || !flow.Status.Has(conntrack.SeenReply))
	}
	if f != nil {
		if b := f.Backend(flow.Backend()); b != nil {
			return b.Expired(now) || b.State != balancer.Active && !flow.Answered()
		}
	}
	return !kept || flow.Proto == balancer.UDP || !flow.Answered()
}

// retryCut is the time until what conntrack refused is tried again.
const retryCut = time.Second

// sweep drops what is due, and returns when something is due again.
func (fl *Flows) sweep(ctx context.Context) (next time.Time) {
	now := time.Now()
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
		_, err = fl.conn.Cut(ctx, keys, fl.judge(now))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fl.log.Warn("ending connections to endpoints that are gone; trying again", "err", err)
	}
	took := time.Since(now)
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.pause = min(max(leastPause, sweepShare*took), mostPause)
	for k := range keys {
		switch {
		case fl.due[k].After(now): // something has come since
		case err != nil:
			fl.due[k] = now.Add(retryCut)
		default:
			delete(fl.due, k)
			fl.dueLocked(k, now)
		}
	}
	fl.due = dataplane.Shrink(fl.due)
	for _, at := range fl.due {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// Close stops the loop. Connections that still have time are not ended any more. Where the rules stay, the next process
// ends those to endpoints that drain or go, because it is told of them; connections to frontends that are gone by then live
// as long as their two ends want.
func (fl *Flows) Close() error {
	fl.loop.Close()
	return fl.conn.Close()
}

// targetOf returns the backend that a flow of a frontend leads to.
func (fl *Flows) targetOf(flow *conntrack.Flow) (balancer.Target, bool) {
	if !flow.Status.Has(conntrack.DstNAT) {
		return balancer.Target{}, false
	}
	fl.mu.Lock()
	f := fl.wanted[flow.Frontend()]
	fl.mu.Unlock()
	if f == nil {
		return balancer.Target{}, false
	}
	at := flow.Backend()
	return balancer.Target{Service: f.Service, Addr: at.Addr(), Port: at.Port()}, true
}
