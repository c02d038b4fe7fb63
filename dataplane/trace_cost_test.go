package dataplane

import (
	"context"
	"errors"
	"testing"
)

// untraced does a step as a round does, in which a batch is written.
func untraced(ctx context.Context, e *Engine, batch []Change) error {
	return e.step(ctx, "apply", len(batch), func(ctx context.Context) error {
		Wrote(ctx, len(batch))
		return ctx.Err()
	})
}

// TestTracingOffCostsNothing: where rounds are not traced, a step allocates nothing.
func TestTracingOffCostsNothing(t *testing.T) {
	e, ctx, batch := &Engine{}, t.Context(), make([]Change, 3)
	var failed error
	if n := testing.AllocsPerRun(100, func() { failed = errors.Join(failed, untraced(ctx, e, batch)) }); n > 0 || failed != nil {
		t.Errorf("a step allocates %v times, %v", n, failed)
	}
}

// BenchmarkStep measures a step of which nothing is told, beside the same without the code for it.
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
