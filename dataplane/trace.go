package dataplane

import (
	"context"
	"sync/atomic"
	"time"

	"vipd/balancer"
)

// Round is one round of an engine: what it did, and what for.
type Round struct {
	// Want is what was wanted.
	Want         balancer.Desired
	Began, Ended time.Time
	// Full: all was compared before.
	Full bool
	// Changes counts the frontends that were changed.
	Changes int
	Steps   []Step
	// Err is what failed; nil means nothing did.
	Err error
}

// Step is one call of the host or the dataplane: observe, prepare host, apply, finish host.
type Step struct {
	Name         string
	Began, Ended time.Time
	// Frontends are how many it was about; 0 means all.
	Frontends int
	// Batches are the restores and netlink batches that it gave to the kernel, of so many Bytes in all: what Wrote told of.
	Batches, Bytes int
	Err            error
}

// writes counts what a step gives to the kernel.
type writes struct{ batches, bytes atomic.Int64 }

type writesKey struct{}

// Wrote says that a restore or a batch of netlink messages of so many bytes was given to the kernel, by the step that ctx is of. Where
// rounds are not traced, it is not reported.
func Wrote(ctx context.Context, bytes int) {
	if w, traced := ctx.Value(writesKey{}).(*writes); traced {
		w.batches.Add(1)
		w.bytes.Add(int64(bytes))
	}
}

// step does one step of a round, and records it for Trace.
func (e *Engine) step(ctx context.Context, name string, frontends int, do func(context.Context) error) error {
	if e.Trace == nil {
		return do(ctx)
	}
	var w writes
	s := Step{Name: name, Frontends: frontends, Began: time.Now()}
	s.Err = do(context.WithValue(ctx, writesKey{}, &w))
	s.Ended, s.Batches, s.Bytes = time.Now(), int(w.batches.Load()), int(w.bytes.Load())
	e.steps = append(e.steps, s)
	return s.Err
}

// traced tells of a round that had work.
func (e *Engine) traced(want balancer.Desired, full bool, began time.Time, changes int, failed error) {
	if e.Trace == nil {
		return
	}
	e.Trace(&Round{Want: want, Began: began, Ended: time.Now(), Full: full, Changes: changes, Steps: e.steps, Err: failed})
	e.steps = nil
}
