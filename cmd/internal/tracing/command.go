package tracing

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Header is the name of the W3C traceparent header, which identifies a request's parent span.
const Header = "traceparent"

// Within returns a copy of ctx whose parent span is the span that the traceparent in parent
// identifies. If parent is not a valid traceparent, Within returns ctx itself.
func Within(ctx context.Context, parent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Header: parent})
}

// Parent returns the traceparent of ctx's current span, or "" if there is none.
func Parent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[Header]
}

// Command starts the span for a vipctl command. parent is the traceparent of the parent span. If it
// is "", a new trace starts. The caller must call end with the command's error. end waits up to two
// seconds for the span to be sent. If o has no endpoint, Command starts no span.
func Command(ctx context.Context, o Options, name, parent string) (inside context.Context, end func(error)) {
	ctx = Within(ctx, parent)
	if o.Endpoint == "" {
		return ctx, func(error) {}
	}
	t, err := newTracer(o, "vipctl")
	if err != nil {
		o.Log.Debug("the command is not traced", "err", err)
		return ctx, func(error) {}
	}
	inside, span := t.tracer.Start(ctx, name)
	return inside, func(failed error) {
		if failed != nil {
			span.SetStatus(codes.Error, failed.Error())
		}
		span.End()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTime)
		defer cancel()
		_ = t.provider.Shutdown(ending) // if the receiver is unreachable, the span is lost
	}
}

// Reload starts the span for a reload inside ctx's span. The caller must call end with the reload's
// error. Store changes that are compiled before that call belong to the span. A nil Tracer traces
// nothing.
func (t *Tracer) Reload(ctx context.Context) (end func(error)) {
	if t == nil {
		return func(error) {}
	}
	_, span := t.tracer.Start(ctx, "reload")
	t.setReload(span.SpanContext())
	return func(failed error) {
		t.setReload(trace.SpanContext{})
		if failed != nil {
			span.SetStatus(codes.Error, failed.Error())
		}
		span.End()
	}
}

func (t *Tracer) setReload(is trace.SpanContext) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reload = is
}

// commands returns a context with the parent span for a change. The parent is the newest command
// that caused the change. If there is no command, the parent is the reload that includes the
// change, if any. others holds links to the other commands that caused the change.
func (t *Tracer) commands(ctx context.Context, c *Compile, services []string) (parent context.Context, others []trace.Link) {
	parent = context.Background()
	after := c.Before.Revision.Store // 0 when vipd starts; earlier changes are not traced
	if t.o.Commands != nil && !c.Seen.IsZero() && after > 0 && c.Snapshot.Revision > after && ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, commandTime)
		defer cancel()
		traces, err := t.o.Commands.Traces(asking, services, after, c.Snapshot.Revision)
		if err != nil {
			t.o.Log.Debug("a change is traced without the command that caused it", "services", services, "err", err)
		}
		for _, text := range traces {
			from := Within(context.Background(), text)
			span := trace.SpanContextFromContext(from)
			if !span.IsValid() {
				continue
			}
			if trace.SpanContextFromContext(parent).IsValid() {
				others = append(others, trace.Link{SpanContext: span})
			} else {
				parent = from
			}
		}
	}
	if !trace.SpanContextFromContext(parent).IsValid() && c.reload.IsValid() {
		parent = trace.ContextWithRemoteSpanContext(parent, c.reload)
	}
	return parent, others
}
