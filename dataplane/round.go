package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// sync runs a round. If a comparison is due, it observes first. Then it prepares the host, applies
// the difference, finishes the host, and reports the result.
func (e *Engine) sync(ctx context.Context, want balancer.Desired, started time.Time) {
	full := e.compare.due
	if full {
		// Changes are applied only to an observed state.
		if err := e.step(ctx, "observe", 0, func(ctx context.Context) error { return e.observe(ctx, want) }); err != nil {
			e.whole.fail(&e.Options)
			e.finish(ctx, &Round{Want: want, Began: started, Full: full, Err: err})
			return
		}
	}
	prepared := e.step(ctx, "prepare host", 0, func(ctx context.Context) error { return e.Host.Prepare(ctx, want) })
	b := e.apply(ctx, want)
	moved := prepared == nil && b.postponed == nil && ctx.Err() == nil && e.hasMoved(want)
	finished := e.step(ctx, "finish host", 0, func(ctx context.Context) error { return e.Host.Finish(ctx, e.served(moved)) })
	if moved && finished == nil {
		e.endSwitch()
	}
	if full {
		e.report.Compared = started
	}
	switch {
	case errors.Join(prepared, b.postponed, finished) == nil:
		e.whole = backoff{}
	default:
		if b.changes > 0 { // some changes were applied, so the backoff starts again
			e.whole = backoff{}
		}
		e.whole.fail(&e.Options)
	}
	e.finish(ctx, &Round{Want: want, Began: started, Full: full, Changes: b.changes, Err: errors.Join(prepared, b.failed, finished)})
}

// finish completes r, and reports it to Trace, Metrics and the status.
func (e *Engine) finish(ctx context.Context, r *Round) {
	if ctx.Err() != nil {
		return
	}
	r.Ended = time.Now()
	r.Steps = e.steps
	e.steps = nil
	if e.Trace != nil {
		e.Trace(r)
	}
	s := &e.report
	if r.Full || r.Changes > 0 || r.Err != nil || s.LastError != "" {
		s.LastFull = r.Full
		s.Last = r.Ended
		s.LastDuration = r.Ended.Sub(r.Began)
		s.LastChanges = r.Changes
		s.LastError = ""
		if r.Err != nil {
			s.LastError = linesOnce(r.Err)
			e.Log.Debug("the wanted state can't be fully applied", "err", r.Err, "failing", len(e.applied.retries))
		}
		e.Metrics.Synced(r.Full, s.LastDuration, r.Changes, r.Err != nil)
	}
	s.Tried = true
	e.reportRepairs()
	isApplied := !e.compare.due && e.whole.tries == 0
	e.target.settle(r.Began, isApplied)
	if isApplied {
		if seen := r.Want.Revision.Seen; !seen.IsZero() && s.Applied.Seen != seen {
			e.Metrics.Programmed(r.Ended.Sub(seen))
		}
		s.Applied = r.Want.Revision
		s.Ready = s.Ready || e.applied.isReady(r.Want)
	}
	s.Failing = e.applied.errors()
	s.Done = e.applied.frontends
	s.Moving = e.moving != nil
	e.publish(*s)
}

// linesOnce returns the text of joined errors without duplicate lines. Several steps may return the
// same error, for example about a ledger that can't be written.
func linesOnce(err error) string {
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// comparison describes the comparison with the existing state that the next round makes first.
type comparison struct {
	due       bool   // compare all frontends, with Observe
	addresses bool   // also compare addresses and routes
	damage    string // the damage that caused the comparison, or ""
}

// observe replaces the applied state with the existing state.
func (e *Engine) observe(ctx context.Context, want balancer.Desired) error {
	seen, err := e.Dataplane.Observe(ctx)
	if err != nil {
		return err
	}
	if e.compare.addresses && e.report.Ready && e.compare.damage == "" { // also reports repairs to the host
		e.compare.damage, _ = e.Host.Intact(ctx) // if this Intact fails, Prepare fails with the same error
		e.reportRepaired()
	}
	e.Host.Resync(e.compare.addresses)
	var found snap.Map[balancer.Key, *balancer.Frontend]
	for key, digest := range seen.Digests {
		f := want.Frontends.At(key)
		if f == nil || len(seen.Damage) > 0 || seen.ReapplyAll || e.Dataplane.Digest(f) != digest {
			f = unknown(key)
		}
		found = found.Set(key, f)
	}
	if e.moving != nil {
		found = e.withRemoved(found, want)
	}
	if e.report.Ready {
		e.repairs.add(e.applied.damaged(found, want), seen.Damage, e.compare.damage)
	}
	e.applied.frontends, e.compare = found, comparison{}
	return nil
}

// repairs holds damage that was noticed and is not repaired yet.
type repairs struct {
	objects int            // number of damaged objects
	keys    []balancer.Key // the damaged frontends
	first   string         // description of the first damage
}

// add records damaged frontends, damaged shared objects, and damage that a check has noticed.
func (r *repairs) add(keys []balancer.Key, shared []string, noticed string) {
	n := len(shared) + len(keys)
	if n == 0 && noticed == "" {
		return
	}
	r.objects = max(r.objects, n, 1) // damage that only a check has noticed counts as one object
	r.keys = append(r.keys, keys...)
	r.first = cmp.Or(r.first, noticed, strings.Join(shared, "; "))
	if r.first == "" {
		r.first = fmt.Sprintf("%s was not as vipd had left it", keys[0])
	}
}

// reportRepairs reports the recorded damage after all of it is repaired.
func (e *Engine) reportRepairs() {
	fails := func(k balancer.Key) bool { return e.applied.retries[k] != nil }
	if r := e.repairs; r.objects > 0 && e.whole.tries == 0 && !slices.ContainsFunc(r.keys, fails) {
		e.report.Repairs += r.objects
		e.Metrics.Repaired(r.objects, r.first)
		e.repairs = repairs{}
	}
}
