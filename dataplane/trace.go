package dataplane

import (
	"context"
	"sync/atomic"
	"time"

	"vipd/balancer"
)

// Round describes a round of an engine.
type Round struct {
	// Want is the wanted state.
	Want         balancer.Desired
	Began, Ended time.Time
	// Full reports whether the round started with a full comparison.
	Full bool
	// Changes is the number of changed frontends.
	Changes int
	Steps   []Step
	// Err joins the failures. It is nil if there were none.
	Err error
}

// Step is a call to the host or the dataplane: observe, prepare host, apply, or finish host.
type Step struct {
	Name         string
	Began, Ended time.Time
	// Frontends is the number of frontends that the step applies, or 0 if it concerns all.
	Frontends int
	// Batches is the number of netlink batches and iptables-restore calls that wrote the step's
	// changes. Bytes is their total size (see Wrote).
	Batches, Bytes int
	Err            error
}

// writes counts the data that a step writes to the kernel.
type writes struct{ batches, bytes atomic.Int64 }

type writesKey struct{}

// Wrote records that ctx's step has written a netlink batch or iptables-restore input of this many
// bytes. Without a trace, it does nothing.
func Wrote(ctx context.Context, bytes int) {
	if w, traced := ctx.Value(writesKey{}).(*writes); traced {
		w.batches.Add(1)
		w.bytes.Add(int64(bytes))
	}
}

// step calls do as a step of a round. If Trace is set, it records the step.
func (e *Engine) step(ctx context.Context, name string, frontends int, do func(context.Context) error) error {
	if e.Trace == nil {
		return do(ctx)
	}
	var w writes
	s := Step{Name: name, Frontends: frontends, Began: time.Now()}
	s.Err = do(context.WithValue(ctx, writesKey{}, &w))
	s.Ended = time.Now()
	s.Batches = int(w.batches.Load())
	s.Bytes = int(w.bytes.Load())
	e.steps = append(e.steps, s)
	return s.Err
}
