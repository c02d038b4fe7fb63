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

// atATime is how many frontends are changed together: a new virtual server is without destinations for as long as those
// of its group take to be made, and the ledger is written once for all of them.
const atATime = 256

// rounds is how often a change is tried at once when the kernel says that what is there was not known well.
const rounds = 3

// Apply makes each key what its change says, by the messages that differ from what is there. What others have done
// meanwhile shows by the kernel's answers: the virtual server is read then, and the change made again.
func (d *Dataplane) Apply(ctx context.Context, batch []dataplane.Change) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	failed := dataplane.KeyErrors{}
	taken := d.askLocked
	if len(batch) > atATime {
		taken = d.listing()
	}
	for part := range slices.Chunk(batch, atATime) {
		d.applyLocked(ctx, part, taken, failed)
	}
	if len(d.quiet) > 0 {
		d.drains.Look()
	}
	d.carried.Applied(batch, failed)
	return failed.Err()
}

func (d *Dataplane) applyLocked(ctx context.Context, part []dataplane.Change, taken taken, failed dataplane.KeyErrors) {
	now := time.Now()
	var work []*server
	for _, c := range part {
		if c.New == nil && d.servers[c.Key] == nil {
			continue
		}
		if err := d.no[inet.Of(c.Key.Addr)]; err != nil && c.New != nil {
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
		work = slices.DeleteFunc(work, func(s *server) bool { return r.again[s] == nil })
		if n == rounds {
			for _, s := range work {
				failed[s.key] = r.again[s]
			}
			return
		}
	}
}

// drainLocked is how long connections may live to what a change leaves out.
func (d *Dataplane) drainLocked(s *server, c dataplane.Change) time.Duration {
	switch {
	case c.New != nil:
		return c.New.DrainTimeout
	case c.Old != nil:
		return c.Old.DrainTimeout // a new drain timeout alone may never have come here
	case s.last != nil:
		return s.last.DrainTimeout
	}
	return d.ledger.entries[s.key].drain
}

// renameLocked has what was counted so far stay with the service that had the key, when another gets it.
func (d *Dataplane) renameLocked(ctx context.Context, s *server, f *balancer.Frontend) error {
	if f == nil || !d.counts.renames(s.key, counters.Port{Service: f.Service, Name: f.Port}) {
		return nil
	}
	if s.there && s.last != nil {
		if err := d.readCountsLocked(ctx, s); err != nil {
			return err
		}
	}
	d.counts.name(s.key, counters.Port{Service: f.Service, Name: f.Port})
	return nil
}

func (d *Dataplane) readCountsLocked(ctx context.Context, s *server) error {
	states, err := d.conn.Destinations(ctx, s.key)
	if errors.Is(err, ipvsnl.ErrNoService) {
		return nil
	}
	if err == nil {
		d.counts.see(s.key, states)
	}
	return err
}

// round is one attempt to make virtual servers what they are to be.
type round struct {
	d   *Dataplane
	ctx context.Context
	// errs are why servers failed.
	errs map[*server]error
	// again are those that were not as they were known to be, or of which that is not known any more, and why.
	again map[*server]error
}

func newRound(ctx context.Context, d *Dataplane) *round {
	return &round{d: d, ctx: ctx, errs: map[*server]error{}, again: map[*server]error{}}
}

// over reports whether nothing more is to be done for s in this round.
func (r *round) over(s *server) bool { return r.errs[s] != nil || r.again[s] != nil }

func (r *round) run(work []*server, taken taken, now time.Time) {
	plans := make(map[*server]steps, len(work))
	for _, s := range work {
		if s.unsure {
			if err := r.d.refreshLocked(r.ctx, s); err != nil {
				r.errs[s] = err
				continue
			}
		}
		p := s.plan(now)
		if len(p.create) > 0 && !r.d.ledger.owns(s.key) && r.takenBy(s, taken) {
			continue
		}
		if len(p.create) > 0 || s.there {
			r.d.recordLocked(s)
		}
		plans[s] = p
	}
	if err := r.d.ledger.save(); err != nil { // never make what could not be recognised as ours
		for s, p := range plans {
			if len(p.create) > 0 {
				r.errs[s] = err
			}
		}
	}
	r.send(work, func(s *server) []ipvsnl.Op { return plans[s].create })
	r.send(work, func(s *server) []ipvsnl.Op { return plans[s].change })
	ends := r.endings(work, plans)
	r.send(work, func(s *server) []ipvsnl.Op { return ends[s] })
	if err := r.d.ledger.save(); err != nil { // it names more than there is, which is safe
		r.d.log.Warn("the ledger is not up to date", "err", err)
	}
	for _, s := range work {
		r.d.changedLocked(s, s.there)
	}
}

// recordLocked notes in the ledger that s is ours.
func (d *Dataplane) recordLocked(s *server) {
	r := d.ledger.entries[s.key]
	if s.front != nil {
		r.drain = s.front.DrainTimeout
	}
	r.until, r.bounded = s.latest(), s.bounded()
	d.ledger.set(s.key, r)
}

// endings returns what is removed at the end of a round: what its plan says, and destinations that take no new
// connections and have no others. Before they go, their counters are read; so are those of destinations that are back,
// which the kernel may go on counting from where they were.
func (r *round) endings(work []*server, plans map[*server]steps) map[*server][]ipvsnl.Op {
	ends := map[*server][]ipvsnl.Op{}
	for _, s := range work {
		if r.over(s) || !s.there {
			continue
		}
		remove := plans[s].remove
		if len(remove) == 0 && !s.quiet && !r.d.counts.back(s.key, plans[s].change) {
			continue
		}
		states, err := r.d.conn.Destinations(r.ctx, s.key)
		if err != nil {
			r.refused(s, ipvsnl.Op{Service: ipvsnl.Service{Key: s.key}}, err)
			continue
		}
		r.d.counts.see(s.key, states)
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

// send has the kernel do one step of each server that has not failed.
func (r *round) send(work []*server, step func(*server) []ipvsnl.Op) {
	var ops []ipvsnl.Op
	var owners []*server
	for _, s := range work {
		if !r.over(s) {
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
			r.d.didLocked(owners[i], op)
			continue
		}
		r.refused(owners[i], op, errs[i])
	}
}

// absent reports whether an op was not done because there is nothing to do.
func absent(op ipvsnl.Op, err error) bool {
	return op.Verb == ipvsnl.DeleteService && errors.Is(err, ipvsnl.ErrNoService) ||
		op.Verb == ipvsnl.DeleteDestination && (errors.Is(err, ipvsnl.ErrNoDestination) || errors.Is(err, ipvsnl.ErrNoService))
}

// refused takes in that the kernel has not done op.
func (r *round) refused(s *server, op ipvsnl.Op, err error) {
	switch {
	case op.Verb == ipvsnl.AddService && errors.Is(err, ipvsnl.ErrExists):
		// It was not there before the ledger named it, and what is in the ledger and not in the kernel is dropped when that
		// is noticed: another program has made it just now.
		r.d.goneLocked(s)
		r.errs[s] = r.d.foreign(r.ctx, s.key)
	case op.Verb == ipvsnl.AddService && !uncertain(err):
		r.d.goneLocked(s)
		r.errs[s] = err
	case op.Verb == ipvsnl.AddService:
		s.unsure, s.asked = true, &op.Service
		r.again[s] = err
	case errors.Is(err, ipvsnl.ErrExists), errors.Is(err, ipvsnl.ErrNoService), errors.Is(err, ipvsnl.ErrNoDestination):
		s.unsure = true
		r.again[s] = err
	default:
		s.unsure = true
		if r.errs[s] == nil {
			r.errs[s] = err
		}
	}
}

// uncertain reports whether an op that failed may have been done all the same.
func uncertain(err error) bool {
	return errors.Is(err, ipvsnl.ErrNoAnswer) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
