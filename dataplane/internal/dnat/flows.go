package dnat

import (
	"cmp"
	"context"
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

// Flows removes flows that conntrack would otherwise continue to send to a removed backend, or past
// a new service. It is necessary because conntrack decides the destination only once per flow. UDP
// clients continue to send, so their flows are removed together with the change. Connections have a
// drain time, after which a separate goroutine ends them, because searching for them takes longer
// than a change.
//
// Flows is a part of [Tracker]. Without a Tracker, it is used by modes whose connections the kernel
// itself tracks, such as virtual servers. Virtual servers end connections to removed destinations.
// They do not end flows that are older than the virtual server, or connections of a previous mode,
// because conntrack handles their packets first.
type Flows struct {
	conn Cutter
	log  *slog.Logger
	loop *worker.Loop
	// own reports whether an address belongs to this host. Redirects send connections to such
	// addresses. own is nil unless this process terminates connections.
	own func(netip.Addr) bool

	mu sync.Mutex // guards the fields below
	// wanted holds the applied frontends.
	wanted map[balancer.Key]*balancer.Frontend
	// due maps each key to the time at which its connections must be checked.
	due map[balancer.Key]time.Time
	// leaving holds the keys that may still have connections from before their frontend was removed
	// or replaced.
	leaving map[balancer.Key]*leave
	// ranges holds the keys in wanted and leaving that have a port range, by address.
	ranges map[netip.Addr][]balancer.Key
	// found holds the keys that an earlier process left, until they are wanted.
	found map[balancer.Key]bool
	// uncut holds the UDP keys whose flows must be removed with the next change because the last
	// attempt failed.
	uncut map[balancer.Key]bool
	// pause is the pause between sweeps (searches for stale flows).
	pause time.Duration
	// forget is when obsolete state is next removed, at a cost proportional to the number of keys.
	forget time.Time
}

// Cutter is the part of conntrack.Conn that Flows uses.
type Cutter interface {
	Cut(ctx context.Context, keys map[balancer.Key]bool, stale func(*conntrack.Flow) bool) (int, error)
	Close() error
}

// leave describes the remaining connections to a key's earlier frontend.
type leave struct {
	// until is the end of the connections' drain time.
	until time.Time
	// port is the port to which the bytes of these connections are added. It is zero if another
	// mode served the frontend, because that mode counts and lists them.
	port counters.Port
	// since holds the backends of the key's later frontends. Connections to these backends do not
	// belong to the earlier frontend.
	since map[netip.AddrPort]bool
}

// has reports whether a connection to b belongs to the earlier frontend.
func (l *leave) has(b netip.AddrPort) bool { return l != nil && !l.since[b] }

// counts reports whether a connection to b belongs to the earlier frontend, and that frontend was
// served by this mode.
func (l *leave) counts(b netip.AddrPort) bool { return l.has(b) && l.port != (counters.Port{}) }

// keeps reports whether a connection to b may continue at the time now.
func (l *leave) keeps(b netip.AddrPort, now time.Time) bool { return l.has(b) && l.until.After(now) }

// endEventGrace is how long an entry stays in leaving after its drain time, because the kernel
// reports that a flow ended only after the flow was removed.
const endEventGrace = 10 * time.Second

// NewFlows returns Flows that start working with the first Applied. Close closes conn.
func NewFlows(conn Cutter, log *slog.Logger) *Flows {
	fl := &Flows{
		conn: conn, log: log,
		wanted: map[balancer.Key]*balancer.Frontend{}, due: map[balancer.Key]time.Time{}, leaving: map[balancer.Key]*leave{},
		ranges: map[netip.Addr][]balancer.Key{}, found: map[balancer.Key]bool{}, uncut: map[balancer.Key]bool{}, pause: minPause,
	}
	fl.loop = worker.New(fl.sweep)
	return fl
}

// find records an earlier process's frontends. Connections to them may belong to earlier
// definitions of the frontends.
func (fl *Flows) find(digests map[balancer.Key]dataplane.Digest) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	clear(fl.found)
	for k := range digests {
		if fl.wanted[k] == nil {
			fl.found[k] = true
		}
	}
}

// cut records that the keys' flows were removed, or that their removal failed with err and must be
// retried.
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

// Applied processes a batch whose changes were applied, except for failed keys. It requests the
// removal of stale flows.
func (fl *Flows) Applied(batch []dataplane.Change, failed dataplane.KeyErrors) {
	atOnce := fl.process(batch, failed)
	fl.mu.Lock()
	for k := range atOnce {
		fl.due[k] = time.Now()
	}
	fl.mu.Unlock()
	fl.loop.Look()
}

// process records the applied changes of a batch, except for failed keys. It returns the UDP keys
// whose flows must be removed immediately.
func (fl *Flows) process(batch []dataplane.Change, failed dataplane.KeyErrors) map[balancer.Key]bool {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	now := time.Now() // read under the lock, so it is later than the time that a sweep in progress uses
	fl.forgetLocked(now)
	atOnce := map[balancer.Key]bool{}
	for _, c := range batch {
		if failed[c.Key] != nil {
			continue
		}
		was := cmp.Or(fl.wanted[c.Key], c.Old)
		if c.New == nil {
			fl.leaveLocked(c.Key, cmp.Or(c.Old, was), now) // c.Old has the last drain timeout, because a new drain timeout alone does not cause a change
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

// leaveLocked records that a key's frontend was removed. was is nil if that frontend is unknown.
func (fl *Flows) leaveLocked(k balancer.Key, was *balancer.Frontend, now time.Time) {
	delete(fl.wanted, k)
	delete(fl.found, k)
	if was == nil {
		return
	}
	l := &leave{until: now, port: counters.Port{Service: was.Service, Name: was.Port}}
	fl.leaving[k] = l
	fl.addRangeLocked(k)
	if k.Proto != balancer.UDP {
		l.until = now.Add(was.DrainTimeout)
		fl.due[k] = fl.togetherLocked(l.until)
	}
}

// wantLocked records that f replaces was, which is nil if the earlier frontend is unknown.
func (fl *Flows) wantLocked(f, was *balancer.Frontend, now time.Time) {
	k := f.Key
	fl.wanted[k] = f
	fl.addRangeLocked(k)
	if k.Proto != balancer.UDP && (fl.found[k] || was == nil && fl.leaving[k] == nil) {
		// Endpoints may have been removed while vipd was down, or another mode may have served this
		// key. Connections to such endpoints get the same drain time.
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

// movesFlows reports whether flows to was may be wrong for next: either a backend of was stops
// getting connections, or was had no backends. Connections from the host's own clients to a
// frontend without backends are refused after conntrack has recorded them. So a client that soon
// reuses the port would be refused again.
func movesFlows(was, next *balancer.Frontend, now time.Time) bool {
	return stopsBackend(was, next, now) || !was.Serves() && next.Serves()
}

// stopsBackend reports whether next no longer has a backend of was, no longer gives it new
// connections, or has ended its drain time. Removing a backend after its drain time also counts,
// because a sweep that started earlier may have spared its connections.
func stopsBackend(was, next *balancer.Frontend, now time.Time) bool {
	return slices.ContainsFunc(was.Backends, func(b balancer.Backend) bool {
		current := next.Backend(b.Addr)
		return current == nil || current.Expired(now) && !b.Expired(now) || current.State != balancer.Active && b.State == balancer.Active
	})
}

// A sweep reads the whole conntrack table. An empty table costs the kernel 9 ms. Checking many keys
// takes little more time than checking a single key. The pause between sweeps is at least minPause
// and at most maxPause. Within these limits, sweeps use at most 1/sweepShare of the time.
const (
	sweepShare = 20
	minPause   = 100 * time.Millisecond
	maxPause   = time.Second
)

// togetherLocked returns the earliest permitted start of a sweep, not before t. Changes within a
// short time thereby share a sweep.
func (fl *Flows) togetherLocked(t time.Time) time.Time {
	if early := t.Sub(t.Truncate(fl.pause)); early > 0 {
		return t.Add(fl.pause - early) // added to t because Truncate's result has no monotonic clock reading
	}
	return t
}

// dueLocked schedules the check of a key for the moment at which the first drain time of a backend
// or an earlier frontend ends.
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

// forgetLocked removes obsolete state.
func (fl *Flows) forgetLocked(now time.Time) {
	if now.Before(fl.forget) {
		return
	}
	fl.forget = now.Add(endEventGrace)
	maps.DeleteFunc(fl.leaving, func(_ balancer.Key, l *leave) bool { return l.until.Add(endEventGrace).Before(now) })
	for a, keys := range fl.ranges {
		fl.ranges[a] = slices.DeleteFunc(keys, func(k balancer.Key) bool { return fl.wanted[k] == nil && fl.leaving[k] == nil })
		if len(fl.ranges[a]) == 0 {
			delete(fl.ranges, a)
		}
	}
}

func (fl *Flows) addRangeLocked(k balancer.Key) {
	if k.Port.IsRange() && !slices.Contains(fl.ranges[k.Addr], k) {
		fl.ranges[k.Addr] = append(fl.ranges[k.Addr], k)
	}
}

// placeLocked sets flow.Ports if the flow's frontend has a port range. If the port also has its own
// frontend, or the narrowest range was removed, the flow's backend determines the frontend, because
// either frontend may be newer.
func (fl *Flows) placeLocked(flow *conntrack.Flow) {
	k := flow.Frontend()
	ranges := fl.ranges[k.Addr]
	if len(ranges) == 0 || flow.Ports != 0 {
		return
	}
	single := fl.wanted[k]
	if single != nil && single.Backend(flow.Backend()) != nil {
		return
	}
	var narrowest, leading balancer.Key
	for _, r := range ranges {
		if !r.Covers(k) {
			continue
		}
		narrower := func(than balancer.Key) bool { return than.Port == 0 || r.Port.Len() < than.Port.Len() }
		if narrower(narrowest) {
			narrowest = r
		}
		if f := fl.wanted[r]; f != nil && f.Backend(flow.BackendOf(r.Port)) != nil && narrower(leading) {
			leading = r
		}
	}
	flow.Ports = leading.Port
	if single == nil && fl.leaving[k] == nil && (leading.Port == 0 || fl.wanted[narrowest] != nil) {
		flow.Ports = narrowest.Port
	}
}

// Close stops the loop, so it no longer ends draining connections. If the rules stay, the next
// process ends connections to endpoints that drain or are removed, because it receives these
// changes. If a frontend is removed while no process runs, its connections continue until one side
// closes them.
func (fl *Flows) Close() error {
	fl.loop.Close()
	return fl.conn.Close()
}

// targetOf returns a flow's backend, or false if the flow does not belong to a frontend.
func (fl *Flows) targetOf(flow *conntrack.Flow) (balancer.Target, bool) {
	if !flow.Status.Has(conntrack.DstNAT) {
		return balancer.Target{}, false
	}
	f := fl.frontend(flow)
	if f == nil {
		return balancer.Target{}, false
	}
	at := flow.Backend()
	return balancer.Target{Service: f.Service, Addr: at.Addr(), Port: at.Port()}, true
}
