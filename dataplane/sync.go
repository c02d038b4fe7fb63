package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// sync makes one round: observe if that is due, prepare the host, apply what differs, finish the host, report.
func (e *Engine) sync(ctx context.Context, want balancer.Desired) {
	started := time.Now()
	full := e.resync
	if full {
		// Never apply on top of what could not be observed.
		if err := e.step(ctx, "observe", 0, func(ctx context.Context) error { return e.observe(ctx, want) }); err != nil {
			e.wholeTry(err)
			e.finish(ctx, want, full, started, 0, err)
			return
		}
	}
	prepared := e.step(ctx, "prepare host", 0, func(ctx context.Context) error { return e.Host.Prepare(ctx, want) })
	a := e.apply(ctx, want)
	took := e.taken(want, prepared, a)
	finished := e.step(ctx, "finish host", 0, func(ctx context.Context) error { return e.Host.Finish(ctx, e.carried(took)) })
	if took && finished == nil {
		e.moved()
	}
	if a.changes > 0 {
		e.wholeTries = 0 // something works: no need to be patient
	}
	if full {
		e.report.Compared = started
	}
	e.wholeTry(errors.Join(prepared, a.gaveUp, finished))
	e.finish(ctx, want, full, started, a.changes, errors.Join(prepared, a.failed, finished))
}

// wholeTry notes the outcome of what is not about single keys, for the next try.
func (e *Engine) wholeTry(err error) {
	if err == nil {
		e.wholeDue, e.wholeTries = time.Time{}, 0
		return
	}
	e.wholeTries++
	e.wholeDue = time.Now().Add(e.backoff(e.wholeTries))
}

// finish writes the report of one round.
func (e *Engine) finish(ctx context.Context, want balancer.Desired, full bool, started time.Time, changes int, failed error) {
	if ctx.Err() != nil {
		return
	}
	e.traced(want, full, started, changes, failed)
	now := time.Now()
	r := &e.report
	if full || changes > 0 || failed != nil || r.LastError != "" {
		r.LastFull, r.Last, r.LastDuration, r.LastChanges = full, now, now.Sub(started), changes
		r.LastError = ""
		if failed != nil {
			r.LastError = eachOnce(failed)
			e.Log.Debug("carrying out the wanted state", "err", failed, "failing", len(e.retries))
		}
		e.Metrics.Synced(full, r.LastDuration, changes, failed != nil)
	}
	r.Tried = true
	e.repaired()
	if !e.resync && e.wholeTries == 0 {
		if r.Applied != want.Revision && !want.Revision.Seen.IsZero() && r.Applied.Seen != want.Revision.Seen {
			e.Metrics.Programmed(now.Sub(want.Revision.Seen))
		}
		r.Applied = want.Revision
		e.caughtUp(started)
		r.Ready = r.Ready || e.some(want)
	} else {
		e.fellBehind(started)
	}
	r.Failing = make(map[balancer.Key]error, len(e.retries))
	for k, t := range e.retries {
		r.Failing[k] = t.err
	}
	r.Done, r.Moving = e.done, e.moving != nil
	e.publish()
}

// eachOnce is the text of joined errors without those that several steps met, such as that of a ledger that can't be written.
func eachOnce(err error) string {
	seen := map[string]bool{}
	lines := slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(line string) bool {
		was := seen[line]
		seen[line] = true
		return was
	})
	return strings.Join(lines, "\n")
}

// broken is what others broke: how many things, the frontends among them, and what was noticed first.
type broken struct {
	things int
	keys   []balancer.Key
	what   string
}

// repaired tells of what others broke once all of it is mended.
func (e *Engine) repaired() {
	failing := func(k balancer.Key) bool { return e.retries[k] != nil }
	if b := e.broken; b.things > 0 && e.wholeTries == 0 && !slices.ContainsFunc(b.keys, failing) {
		e.report.Repairs += b.things
		e.Metrics.Repaired(b.things, b.what)
		e.broken = broken{}
	}
}

// some reports whether anything of want is applied: a state of which nothing at all could be is not ready.
func (e *Engine) some(want balancer.Desired) bool {
	failing := 0
	for k := range e.retries {
		if want.Frontends.Has(k) { // else its removal fails
			failing++
		}
	}
	return want.Frontends.Len() == 0 || failing < want.Frontends.Len()
}

// observe rebuilds what is done from what is there.
func (e *Engine) observe(ctx context.Context, want balancer.Desired) error {
	seen, err := e.Dataplane.Observe(ctx)
	if err != nil {
		return err
	}
	if e.addresses && e.report.Ready && !e.repair { // what it mends of the host's is told of too
		reason, _ := e.Host.Intact(ctx) // where it can't look, Prepare can't either, and says so
		e.repair, e.damage = reason != "", reason
		e.mended()
	}
	e.Host.Resync(e.addresses)
	var done snap.Map[balancer.Key, *balancer.Frontend]
	for key, digest := range seen.Digests {
		f := want.Frontends.At(key)
		if f == nil || len(seen.Damage) > 0 || seen.ReapplyAll || e.Dataplane.Digest(f) != digest {
			f = &balancer.Frontend{Key: key} // something is there: nothing that is wanted has this pointer
		}
		done = done.Set(key, f)
	}
	if e.moving != nil {
		done = e.withGone(done, want)
	}
	var keys []balancer.Key
	for key, change := range snap.Diff(e.done, done) {
		if change.HadOld && want.Frontends.At(key) == change.Old {
			keys = append(keys, key)
		}
	}
	if n := len(seen.Damage) + len(keys); e.report.Ready && (e.repair || n > 0) {
		b := &e.broken
		b.things = max(b.things, n, 1) // what is missing of the host's is one thing
		b.keys = append(b.keys, keys...)
		if b.what = cmp.Or(b.what, e.damage, strings.Join(seen.Damage, "; ")); b.what == "" && len(keys) > 0 {
			b.what = fmt.Sprintf("%s was not as it was left", keys[0])
		}
	}
	e.done, e.resync, e.addresses, e.repair, e.damage = done, false, false, false, ""
	return nil
}

// apply applies what differs and is not waiting out a backoff: first what has not failed by itself, so that what has
// blocks no caller.
func (e *Engine) apply(ctx context.Context, want balancer.Desired) *applying {
	var fresh, failed []Change
	a := &applying{Engine: e, ctx: ctx}
	now, enforced := time.Now(), e.Dataplane.Capabilities().EnforcesSources
	for key, d := range snap.Diff(e.done, want.Frontends) {
		t := e.retries[key]
		if t != nil && t.wanted == d.New && now.Before(t.due) && !t.held {
			continue
		}
		if d.HadOld && d.HasNew && e.isApplied(d.Old) && e.Dataplane.Digest(d.Old) == e.Dataplane.Digest(d.New) {
			e.settled(key, d.New)
			continue
		}
		c := Change{Key: key, New: d.New}
		if d.HadOld && e.isApplied(d.Old) {
			c.Old = d.Old
		}
		var held error
		if c.New != nil {
			held = e.Host.Ready(c, enforced)
		}
		switch {
		case held != nil:
			a.hold(c, held)
		case t != nil && t.tries > 0:
			failed = append(failed, c)
		default:
			fresh = append(fresh, c)
		}
	}
	maps.DeleteFunc(e.gone, func(_ balancer.Key, d departure) bool { return d.until.Before(now) })
	maps.DeleteFunc(e.retries, func(k balancer.Key, _ *retry) bool { // what is as wanted after all
		return want.Frontends.At(k) == e.done.At(k)
	})
	for _, batch := range [][]Change{fresh, failed} {
		if len(batch) > 0 {
			a.failures, a.maxFailures = 0, 2*bits.Len(uint(len(batch)))+4
			a.run(batch)
		}
	}
	if len(e.retries) == 0 && ctx.Err() == nil {
		e.done = want.Frontends // the same entries; sharing the nodes makes the next comparison cheap
	}
	return a
}

// isApplied reports whether f is a frontend that was applied, not the mark of something found.
func (e *Engine) isApplied(f *balancer.Frontend) bool { return f.Service != "" }

// settled notes that key is as wanted.
func (e *Engine) settled(key balancer.Key, f *balancer.Frontend) {
	delete(e.retries, key)
	delete(e.gone, key)
	if f == nil {
		if was := e.done.At(key); was != nil && e.isApplied(was) {
			e.gone[key] = departure{was, time.Now().Add(was.DrainTimeout)}
		}
		e.done = e.done.Delete(key)
		return
	}
	e.done = e.done.Set(key, f)
}

// applying is one walk through a batch, halving what fails.
type applying struct {
	*Engine
	ctx         context.Context
	maxFailures int // how many failures in a row, without any success, mean that it is not about single keys
	failures    int
	changes     int
	failed      error // the first failure
	gaveUp      error // why the rest was left for later
}

func (a *applying) run(batch []Change) {
	if a.ctx.Err() != nil {
		return
	}
	if a.failures >= a.maxFailures && !a.sample(&batch) {
		a.giveUp(batch)
		return
	}
	if len(batch) == 0 {
		return
	}
	err := a.step(a.ctx, "apply", len(batch), func(ctx context.Context) error { return a.Dataplane.Apply(ctx, batch) })
	a.begins()
	var each KeyErrors
	switch {
	case err == nil:
		a.failures = 0
		for _, c := range batch {
			a.settled(c.Key, c.New)
		}
		a.changes += len(batch)
	case errors.As(err, &each):
		a.failures = 0
		for _, c := range batch {
			if err := each[c.Key]; err != nil {
				a.fail(c, err)
			} else {
				a.settled(c.Key, c.New)
				a.changes++
			}
		}
	case len(batch) == 1:
		a.failures++
		a.fail(batch[0], err)
	default:
		a.failures++
		half := len(batch) / 2
		a.run(batch[:half])
		a.run(batch[half:])
	}
}

// sample tries the last of a batch alone, to tell many bad keys from a dataplane in which nothing works.
func (a *applying) sample(batch *[]Change) bool {
	last := len(*batch) - 1
	c := (*batch)[last]
	*batch = (*batch)[:last]
	if err := a.Dataplane.Apply(a.ctx, []Change{c}); err != nil {
		if each := (KeyErrors)(nil); errors.As(err, &each) {
			err = each[c.Key]
		}
		a.fail(c, err)
		return false
	}
	a.failures = 0
	a.settled(c.Key, c.New)
	a.changes++
	return true
}

// fail puts one key into backoff.
func (a *applying) fail(c Change, err error) {
	if a.ctx.Err() != nil {
		return
	}
	if a.failed == nil {
		a.failed = err
	}
	a.postpone(c, err)
	a.markUnknown(c.Key)
}

// markUnknown notes that what is there now is unknown: even what was not there before may be, with only the answer lost.
func (a *applying) markUnknown(k balancer.Key) { a.done = a.done.Set(k, &balancer.Frontend{Key: k}) }

// hold leaves a key as it is until the host lets it be applied.
func (a *applying) hold(c Change, err error) {
	t := a.remember(c)
	if t.held && time.Now().Before(t.due) {
		t.err = err
		return
	}
	if a.failed == nil {
		a.failed = err
	}
	a.postpone(c, err)
	t.held = true
}

// postpone counts one more failure of a key.
func (a *applying) postpone(c Change, err error) {
	t := a.remember(c)
	t.err, t.held = err, false
	t.tries++
	t.due = time.Now().Add(a.backoff(t.tries))
}

// remember returns the retry of a change.
func (a *applying) remember(c Change) *retry {
	t := a.retries[c.Key]
	if t == nil || t.wanted != c.New {
		t = &retry{wanted: c.New}
		a.retries[c.Key] = t
	}
	return t
}

// giveUp leaves the rest of a batch for later, without counting it as tried: the failure is not about single keys. A part of it may
// have been made by the larger batches that failed.
func (a *applying) giveUp(batch []Change) {
	a.gaveUp = a.failed
	due := time.Now().Add(a.backoff(a.wholeTries + 1))
	for _, c := range batch {
		t := a.remember(c)
		t.err, t.due, t.held = a.failed, due, false
		a.markUnknown(c.Key)
	}
}
