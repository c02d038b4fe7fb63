package dataplane

import (
	"context"
	"errors"
	"testing"
)

// untraced runs a step that records a batch as written.
func untraced(ctx context.Context, e *Engine, batch []Change) error {
	return e.step(ctx, "apply", len(batch), func(ctx context.Context) error {
		Wrote(ctx, len(batch))
		return ctx.Err()
	})
}

// TestStepWithoutTrace runs a step in an engine whose Trace is nil. The step must not allocate
// memory.
func TestStepWithoutTrace(t *testing.T) {
	e, ctx, batch := &Engine{}, t.Context(), make([]Change, 3)
	var failed error
	if n := testing.AllocsPerRun(100, func() { failed = errors.Join(failed, untraced(ctx, e, batch)) }); n > 0 || failed != nil {
		t.Errorf("allocations of a step = %v, want 0; error = %v", n, failed)
	}
}

// BenchmarkStep measures a call without a step, a call in a step without Trace, and a call in a
// step with Trace.
func BenchmarkStep(b *testing.B) {
	e, batch := &Engine{}, make([]Change, 3)
	run := func(name string, step func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := step(); err != nil {
					b.Fatal(err)
				}
				e.steps = e.steps[:0]
			}
		})
	}
	apply := func(ctx context.Context) error { return ctx.Err() }
	run("without", func() error { return apply(b.Context()) })
	run("untraced", func() error { return untraced(b.Context(), e, batch) })
	e.Trace = func(*Round) {}
	run("traced", func() error { return untraced(b.Context(), e, batch) })
}
