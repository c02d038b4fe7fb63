package ipvs

import (
	"context"
	"errors"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipvsnl"
)

// maxGroup is the maximum number of frontends that are changed together. A new virtual server has
// no destinations until its whole group is created, and the ledger is written once per group.
const maxGroup = 256

// maxRounds is the maximum number of attempts at a change if the kernel's state differs from the
// known state.
const maxRounds = 3

// Apply applies a batch of changes to the kernel's virtual servers. It sends only messages that
// change the known state. If an answer shows that another program has changed a virtual server,
// Apply reads the virtual server and repeats the change.
func (d *Dataplane) Apply(ctx context.Context, batch []dataplane.Change) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	failed := dataplane.KeyErrors{}
	taken := d.askLocked
	if len(batch) > maxGroup {
		taken = d.listing()
	}
	for part := range slices.Chunk(batch, maxGroup) {
		d.applyLocked(ctx, part, taken, failed)
	}
	if len(d.quiet) > 0 {
		d.drains.Look()
	}
	d.carried.Applied(batch, failed)
	return failed.Err()
}

func (d *Dataplane) applyLocked(ctx context.Context, part []dataplane.Change, taken foreignCheck, failed dataplane.KeyErrors) {
	now := time.Now()
	var work []*server
	for _, c := range part {
		if c.New == nil && d.servers[c.Key] == nil {
			continue
		}
		if err := d.unavailable[inet.Of(c.Key.Addr)]; err != nil && c.New != nil {
			failed[c.Key] = err
			continue
		}
		s := d.serverLocked(c.Key)
		if err := d.renameLocked(ctx, s, c.New); err != nil {
			failed[c.Key] = err
			continue
		}
		s.want(c.New, d.drainLocked(s, c), now)
		work = append(work, s)
	}
	for n := 1; len(work) > 0; n++ {
		r := newRound(ctx, d)
		r.run(work, taken, now)
		for s, err := range r.errs {
			failed[s.key] = err
		}
		work = slices.DeleteFunc(work, func(s *server) bool { return r.retry[s] == nil })
		if n == maxRounds {
			for _, s := range work {
				failed[s.key] = r.retry[s]
			}
			return
		}
	}
}

// drainLocked returns how long connections to a removed backend may continue after change c.
func (d *Dataplane) drainLocked(s *server, c dataplane.Change) time.Duration {
	switch {
	case c.New != nil:
		return c.New.DrainTimeout
	case c.Old != nil:
		return c.Old.DrainTimeout // not the ledger's value, which does not reflect a change to drain_timeout alone
	case s.last != nil:
		return s.last.DrainTimeout
	}
	return d.ledger.entries[s.key].drain
}

// renameLocked assigns a key's future counts to f's service. If the service has changed, it first
// reads the counters for the previous service.
func (d *Dataplane) renameLocked(ctx context.Context, s *server, f *balancer.Frontend) error {
	if f == nil || !d.counts.renames(s.key, counters.Port{Service: f.Service, Name: f.Port}) {
		return nil
	}
	if s.exists && s.last != nil {
		if err := d.readCountsLocked(ctx, s); err != nil {
			return err
		}
	}
	d.counts.setPort(s.key, counters.Port{Service: f.Service, Name: f.Port})
	return nil
}

func (d *Dataplane) readCountsLocked(ctx context.Context, s *server) error {
	states, err := d.conn.Destinations(ctx, s.key)
	if errors.Is(err, ipvsnl.ErrNoService) {
		return nil
	}
	if err == nil {
		d.counts.observe(s.key, states)
	}
	return err
}

// round is an attempt to change virtual servers.
type round struct {
	d    *Dataplane
	ctx  context.Context
	errs map[*server]error
	// retry holds the servers that must be read and changed again, with the reason: the kernel's
	// state is unknown, or differs from the known state.
	retry map[*server]error
}

func newRound(ctx context.Context, d *Dataplane) *round {
	return &round{d: d, ctx: ctx, errs: map[*server]error{}, retry: map[*server]error{}}
}

// settled reports whether the round has nothing left to do for s.
func (r *round) settled(s *server) bool { return r.errs[s] != nil || r.retry[s] != nil }

func (r *round) run(work []*server, taken foreignCheck, now time.Time) {
	plans := make(map[*server]steps, len(work))
	for _, s := range work {
		if s.unsure {
			if err := r.d.refreshLocked(r.ctx, s); err != nil {
				r.errs[s] = err
				continue
			}
		}
		p := s.plan(now)
		if len(p.create) > 0 && !r.d.ledger.owns(s.key) && r.blockedByForeign(s, taken) {
			continue
		}
		if len(p.create) > 0 || s.exists {
			r.d.recordLocked(s)
		}
		plans[s] = p
	}
	if err := r.d.ledger.save(); err != nil { // never create a virtual server that the ledger does not name
		for s, p := range plans {
			if len(p.create) > 0 {
				r.errs[s] = err
			}
		}
	}
	r.send(work, func(s *server) []ipvsnl.Op { return plans[s].create })
	r.send(work, func(s *server) []ipvsnl.Op { return plans[s].change })
	r.mark(work)
	ends := r.removals(work, plans)
	r.send(work, func(s *server) []ipvsnl.Op { return ends[s] })
	if err := r.d.ledger.save(); err != nil { // after a failure, the ledger names more virtual servers than exist, which is safe
		r.d.log.Warn("the ledger is not up to date", "err", err)
	}
	for _, s := range work {
		r.d.changedLocked(s, s.exists)
	}
}

// mark writes the marks of port ranges. If this fails, the servers with a port range fail.
func (r *round) mark(work []*server) {
	err := r.d.markRangesLocked(r.ctx)
	for _, s := range work {
		if err != nil && s.key.Port.IsRange() && r.errs[s] == nil {
			r.errs[s] = err
		}
	}
}

// recordLocked records in the ledger the virtual server of s, and how long its connections may
// live.
func (d *Dataplane) recordLocked(s *server) {
	r := d.ledger.entries[s.key]
	if s.front != nil {
		r.drain = s.front.DrainTimeout
	}
	r.until, r.bounded = s.latest(), s.bounded()
	d.ledger.set(s.key, r)
}

// removals returns the messages that a round sends last, to remove objects: the plan's own
// messages, and the removal of drained destinations without connections. It first reads the
// counters of these destinations. It also reads the counters of restored destinations, because the
// kernel may continue the old counts.
func (r *round) removals(work []*server, plans map[*server]steps) map[*server][]ipvsnl.Op {
	ends := map[*server][]ipvsnl.Op{}
	for _, s := range work {
		if r.settled(s) || !s.exists {
			continue
		}
		remove := plans[s].remove
		if len(remove) == 0 && !s.quiet && !r.d.counts.back(s.key, plans[s].change) {
			continue
		}
		states, err := r.d.conn.Destinations(r.ctx, s.key)
		if err != nil {
			r.handleRefusal(s, ipvsnl.Op{Service: ipvsnl.Service{Key: s.key}}, err)
			continue
		}
		r.d.counts.observe(s.key, states)
		for _, op := range s.ended(states, time.Now()) {
			if op.Verb == ipvsnl.DeleteService {
				remove = []ipvsnl.Op{op}
			} else if !slices.Contains(remove, op) {
				remove = append(remove, op)
			}
		}
		ends[s] = remove
	}
	return ends
}

// send sends the messages that step returns, for each server that is not settled.
func (r *round) send(work []*server, step func(*server) []ipvsnl.Op) {
	var ops []ipvsnl.Op
	var owners []*server
	for _, s := range work {
		if !r.settled(s) {
			for _, op := range step(s) {
				ops, owners = append(ops, op), append(owners, s)
			}
		}
	}
	if len(ops) == 0 {
		return
	}
	errs := r.d.conn.Do(r.ctx, ops)
	for i, op := range ops {
		if errs == nil || errs[i] == nil || absent(op, errs[i]) {
			r.d.noteDoneLocked(owners[i], op)
			continue
		}
		r.handleRefusal(owners[i], op, errs[i])
	}
}

// absent reports whether a deletion failed because the object was already missing.
func absent(op ipvsnl.Op, err error) bool {
	return op.Verb == ipvsnl.DeleteService && errors.Is(err, ipvsnl.ErrNoService) ||
		op.Verb == ipvsnl.DeleteDestination && (errors.Is(err, ipvsnl.ErrNoDestination) || errors.Is(err, ipvsnl.ErrNoService))
}

func (r *round) handleRefusal(s *server, op ipvsnl.Op, err error) {
	switch {
	case op.Verb == ipvsnl.AddService && errors.Is(err, ipvsnl.ErrExists):
		// The virtual server was missing when the ledger entry was added, because an entry is
		// dropped as soon as its virtual server is found missing. So another program has created
		// the virtual server since.
		r.d.noteGoneLocked(s)
		r.errs[s] = r.d.foreign(r.ctx, s.key)
	case op.Verb == ipvsnl.AddService && !uncertain(err):
		r.d.noteGoneLocked(s)
		r.errs[s] = err
	case op.Verb == ipvsnl.AddService:
		s.unsure, s.unanswered = true, &op.Service
		r.retry[s] = err
	case errors.Is(err, ipvsnl.ErrExists), errors.Is(err, ipvsnl.ErrNoService), errors.Is(err, ipvsnl.ErrNoDestination):
		s.unsure = true
		r.retry[s] = err
	default:
		s.unsure = true
		if r.errs[s] == nil {
			r.errs[s] = err
		}
	}
}

// uncertain reports whether a failed op may have been carried out.
func uncertain(err error) bool {
	return errors.Is(err, ipvsnl.ErrNoAnswer) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
