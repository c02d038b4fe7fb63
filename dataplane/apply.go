package dataplane

import (
	"context"
	"errors"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// batches applies a round's changes in batches. A round is one pass of [Engine.Run]. If a batch
// fails, it splits the batch into halves.
type batches struct {
	*Engine
	ctx         context.Context
	failures    int // number of consecutive failures
	maxFailures int // after this many, a failure is assumed not to be specific to a key
	changes     int
	failed      error // the first failure
	postponed   error // the reason why changes were postponed
}

// apply applies the differences between the applied state and want, except for keys in backoff.
// Keys that have failed before come last, so they do not delay other keys.
func (e *Engine) apply(ctx context.Context, want balancer.Desired) *batches {
	b := &batches{Engine: e, ctx: ctx}
	var fresh, failed []Change
	now, enforced := time.Now(), e.Dataplane.Capabilities().EnforcesSources
	for key, d := range snap.Diff(e.applied.frontends, want.Frontends) {
		t := e.applied.retries[key]
		if t != nil && t.wanted == d.New && now.Before(t.due) && !t.held {
			continue
		}
		c := Change{Key: key, New: d.New}
		if d.HadOld && isApplied(d.Old) {
			c.Old = d.Old
		}
		if c.Old != nil && c.New != nil && e.Dataplane.Digest(c.Old) == e.Dataplane.Digest(c.New) {
			e.applied.settle(key, c.New)
			continue
		}
		if c.New != nil {
			if err := e.Host.Ready(c, enforced); err != nil {
				b.hold(c, err)
				continue
			}
		}
		if t != nil && t.tries > 0 {
			failed = append(failed, c)
		} else {
			fresh = append(fresh, c)
		}
	}
	e.applied.prune(want)
	for _, batch := range [][]Change{fresh, failed} {
		removedRangesFirst(batch)
		b.failures, b.maxFailures = 0, 2*bits.Len(uint(len(batch)))+4
		b.run(batch, false)
	}
	if len(e.applied.retries) == 0 && ctx.Err() == nil {
		e.applied.frontends = want.Frontends // both have equal entries; sharing the nodes makes the next comparison fast
	}
	return b
}

// removedRangesFirst sorts a batch. A removed port range comes before all other changes if another
// range is added on the same address, because the two ranges may overlap. Other removals stay where
// they are, so splitting the batch causes no gap between a removal and an addition.
func removedRangesFirst(batch []Change) {
	type place struct {
		addr  netip.Addr
		proto balancer.Protocol
	}
	added := map[place]bool{}
	for _, c := range batch {
		if c.New != nil && c.Key.Port.IsRange() {
			added[place{c.Key.Addr, c.Key.Proto}] = true
		}
	}
	rank := func(c Change) int {
		if c.New == nil && c.Key.Port.IsRange() && added[place{c.Key.Addr, c.Key.Proto}] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(batch, func(a, b Change) int { return rank(a) - rank(b) })
}

// hold leaves the key of c unchanged until the host permits the change. err is the host's reason.
func (b *batches) hold(c Change, err error) {
	t := b.applied.retryOf(c)
	t.err = err
	if t.held && time.Now().Before(t.due) {
		return
	}
	t.held = true
	t.fail(&b.Options)
	b.note(err)
}

// note records err if it is the round's first failure.
func (b *batches) note(err error) {
	if b.failed == nil {
		b.failed = err
	}
}

// run applies a batch. If the whole batch fails, it applies the halves. If sample is set, the batch
// is a single change that shows whether any change can be applied.
func (b *batches) run(batch []Change, sample bool) {
	if len(batch) == 0 || b.ctx.Err() != nil {
		return
	}
	if last := len(batch) - 1; b.failures >= b.maxFailures && !sample { // either many keys are bad or every change fails
		before := b.changes
		b.run(batch[last:], true)
		if batch = batch[:last]; b.changes == before {
			b.failures = b.maxFailures
			b.postpone(batch)
			return
		}
		if last == 0 {
			return
		}
	}
	err := b.step(b.ctx, "apply", len(batch), func(ctx context.Context) error { return b.Dataplane.Apply(ctx, batch) })
	b.busy.start()
	var byKey KeyErrors
	b.failures++
	switch {
	case err == nil || errors.As(err, &byKey):
		b.failures = 0
	case len(batch) == 1:
		byKey = KeyErrors{batch[0].Key: err}
	default:
		half := len(batch) / 2
		b.run(batch[:half], false)
		b.run(batch[half:], false)
		return
	}
	for _, c := range batch {
		if err := byKey[c.Key]; err != nil {
			b.fail(c, err)
			continue
		}
		b.applied.settle(c.Key, c.New)
		b.changes++
	}
}

// fail puts the key of c into backoff because of err.
func (b *batches) fail(c Change, err error) {
	if b.ctx.Err() != nil {
		return
	}
	b.note(err)
	t := b.applied.retryOf(c)
	t.err, t.held = err, false
	t.fail(&b.Options)
	b.applied.markUnknown(c.Key)
}

// postpone leaves a batch for a later round. It does not count as an attempt, because the failure
// is not specific to these keys. The state of these keys is unknown, because larger batches that
// failed may have applied some of them.
func (b *batches) postpone(batch []Change) {
	b.postponed = b.failed
	due := time.Now().Add(b.pause(b.whole.tries + 1))
	for _, c := range batch {
		t := b.applied.retryOf(c)
		t.err = b.failed
		t.due = due
		t.held = false
		b.applied.markUnknown(c.Key)
	}
}
