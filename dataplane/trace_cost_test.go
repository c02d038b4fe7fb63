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
		return nil
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

func BenchmarkStep(b *testing.B) {
	for name, trace := range map[string]func(*Round){"untraced": nil, "traced": func(*Round) {}} {
		b.Run(name, func(b *testing.B) {
			e, batch := &Engine{Options: Options{Trace: trace}}, make([]Change, 3)
			b.ReportAllocs()
			for b.Loop() {
				if err := untraced(b.Context(), e, batch); err != nil {
					b.Fatal(err)
				}
				e.steps = e.steps[:0]
			}
		})
	}
}
