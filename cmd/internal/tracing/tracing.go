package tracing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/store"
)

// Options configures a Tracer.
type Options struct {
	// Endpoint is the receiver's URL, without /v1/traces.
	Endpoint      string
	Node, Version string
	// Commands finds the commands that caused changes in etcd. If nil, changes come from files.
	Commands Commands
	Log      *slog.Logger
}

// Commands reads the traceparents that commands have stored in etcd.
type Commands interface {
	// Traces returns the traceparents of changes to these services. The changes are newer than the
	// revision after, and not newer than the revision until. The newest change is first.
	Traces(ctx context.Context, services []string, after, until int64) ([]string, error)
	Close() error
}

// Tracer creates traces of changes.
type Tracer struct {
	o        Options
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	carried  chan carried // input for Run

	mu      sync.Mutex
	pending []*Compile        // compiled, but not yet applied by a round; newest last
	reload  trace.SpanContext // span of the running reload; invalid if there is none

	// failed is the span of the last change that could not be applied completely. It is invalid if
	// there is none. Run owns it.
	failed trace.SpanContext
}

// carried is an engine round (one pass that applies changes) with the changes that it applied.
type carried struct {
	round   *dataplane.Round
	changes []*Compile
}

const (
	// sendEvery is the interval at which spans are sent. sendTime is the timeout for sending them.
	sendEvery = time.Second
	sendTime  = 5 * time.Second
	// commandTime is the timeout for reading a change's commands from etcd, and for sending a
	// command's span.
	commandTime = 2 * time.Second
	// maxPending is the maximum number of changes that wait for an engine round.
	maxPending = 100
	// named is the maximum number of service names in a span.
	named = 10
)

// New returns a Tracer for vipd. It connects to the receiver only when it has spans to send.
func New(o Options) (*Tracer, error) { return newTracer(o, "vipd") }

func newTracer(o Options, program string) (*Tracer, error) {
	exporter, err := otlptracehttp.New(context.Background(),
		otlptracehttp.WithEndpointURL(strings.TrimSuffix(o.Endpoint, "/")+"/v1/traces"), otlptracehttp.WithTimeout(sendTime),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}))
	if err != nil {
		return nil, fmt.Errorf("sending traces to %s: %w", o.Endpoint, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { o.Log.Debug("traces are dropped", "err", err) }))
	t := &Tracer{o: o, carried: make(chan carried, maxPending), provider: sdk.NewTracerProvider(
		sdk.WithBatcher(exporter, sdk.WithBatchTimeout(sendEvery), sdk.WithExportTimeout(sendTime)),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", program), attribute.String("service.version", o.Version), attribute.String("host.name", o.Node))),
	)}
	t.tracer = t.provider.Tracer(program)
	return t, nil
}

// Run creates and sends traces until ctx is done. It then spends at most sendTime on sending the
// remaining spans.
func (t *Tracer) Run(ctx context.Context) {
	for ended := false; !ended; {
		select {
		case c := <-t.carried:
			t.makeTraces(ctx, &c)
		case <-ctx.Done():
			ended = true
		}
	}
	for len(t.carried) > 0 {
		c := <-t.carried
		t.makeTraces(ctx, &c)
	}
	if t.o.Commands != nil {
		_ = t.o.Commands.Close() // no request is running
	}
	ending, cancel := context.WithTimeout(context.Background(), sendTime)
	defer cancel()
	_ = t.provider.Shutdown(ending) // if the receiver is unreachable, the last spans are lost
}

// Compile describes how a new desired state was compiled, for [Tracer.Compiled].
type Compile struct {
	Snapshot *store.Snapshot
	// Seen is the time when the store published the snapshot. It is zero if the store did not
	// change, for example if only an endpoint's health changed.
	Seen         time.Time
	Began, Ended time.Time
	// Before and Desired are the previous and the new desired state.
	Before, Desired balancer.Desired

	reload trace.SpanContext // span of the reload that includes it; invalid if there is none
}

// Compiled records a new desired state, which then waits for the engine round that applies it.
// Compiled ignores a state that changes nothing.
func (t *Tracer) Compiled(c *Compile) {
	if c.Before.Frontends == c.Desired.Frontends && c.Seen.IsZero() {
		return
	}
	copied := *c.Snapshot
	c.Snapshot = &copied
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.Seen.IsZero() {
		c.reload = t.reload
	}
	if len(t.pending) == maxPending {
		t.pending = t.pending[1:]
	}
	t.pending = append(t.pending, c)
}

// Round records an engine round, together with the waiting changes that it applied. It never
// blocks.
func (t *Tracer) Round(r *dataplane.Round) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := -1
	for i, c := range t.pending {
		if c.Desired.Frontends == r.Want.Frontends {
			last = i
		}
	}
	if last < 0 && r.Changes == 0 && r.Err == nil {
		return
	}
	c := carried{r, slices.Clone(t.pending[:last+1])}
	t.pending = slices.Delete(t.pending, 0, last+1)
	select {
	case t.carried <- c:
	default: // drop the round, because etcd has not answered for minutes
	}
}

// makeTraces creates a trace for each change in a round. If there are no changes, it creates a
// trace of the round itself.
func (t *Tracer) makeTraces(ctx context.Context, of *carried) {
	for i, c := range of.changes {
		t.change(ctx, c, of.round, i == len(of.changes)-1)
	}
	if len(of.changes) == 0 {
		t.again(of.round)
	}
}

// change creates the trace of a change. own reports whether it is the round's latest change. Only
// the latest change's trace contains the round's spans.
func (t *Tracer) change(ctx context.Context, c *Compile, r *dataplane.Round, own bool) {
	began := c.Began
	for _, earlier := range []time.Time{c.Seen, c.Snapshot.Began} {
		if !c.Seen.IsZero() && !earlier.IsZero() && earlier.Before(began) {
			began = earlier
		}
	}
	names, changed := changedServices(c)
	parent, others := t.commands(ctx, c, names)
	ctx, root := t.tracer.Start(parent, "change", trace.WithTimestamp(began), trace.WithLinks(others...), trace.WithAttributes(
		attribute.String("vipd.cause", cause(c)), attribute.Int64("vipd.revision", c.Snapshot.Revision),
		attribute.StringSlice("vipd.services", names), attribute.Int("vipd.frontends.changed", changed)))
	if !c.Seen.IsZero() && !c.Snapshot.Began.IsZero() {
		t.span(ctx, "decode", c.Snapshot.Began, c.Seen, nil, attribute.Int("vipd.services.all", c.Snapshot.Services.Len()),
			attribute.Int("vipd.problems", len(c.Snapshot.Problems)))
	}
	t.span(ctx, "compile", c.Began, c.Ended, nil, attribute.Int("vipd.frontends.all", c.Desired.Frontends.Len()))
	if own {
		t.round(ctx, r)
	}
	t.end(root, r, own)
}

// again creates the trace of a round that applied no new change, such as a retry or a repair.
func (t *Tracer) again(r *dataplane.Round) {
	options := []trace.SpanStartOption{trace.WithTimestamp(r.Began), trace.WithNewRoot(), trace.WithAttributes(attribute.String("vipd.cause", "repair"))}
	if t.failed.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: t.failed}), trace.WithAttributes(attribute.String("vipd.cause", "retry")))
	}
	ctx, root := t.tracer.Start(context.Background(), "again", options...)
	t.round(ctx, r)
	t.end(root, r, !t.failed.IsValid())
	if r.Err == nil {
		t.failed = trace.SpanContext{}
	}
}

// end ends the span root with the round's error. If own is true, end also sets the field failed,
// which the traces of retries link to: to root if the round failed, and otherwise to an invalid
// span.
func (t *Tracer) end(root trace.Span, r *dataplane.Round, own bool) {
	if r.Err != nil {
		root.SetStatus(codes.Error, r.Err.Error())
	}
	if own {
		t.failed = trace.SpanContext{}
		if r.Err != nil {
			t.failed = root.SpanContext()
		}
	}
	root.End(trace.WithTimestamp(r.Ended))
}

// round creates the spans for a round and its steps.
func (t *Tracer) round(ctx context.Context, r *dataplane.Round) {
	ctx, engine := t.tracer.Start(ctx, "engine", trace.WithTimestamp(r.Began),
		trace.WithAttributes(attribute.Bool("vipd.full", r.Full), attribute.Int("vipd.frontends.changed", r.Changes)))
	for _, s := range r.Steps {
		var about []attribute.KeyValue
		if s.Frontends > 0 {
			about = append(about, attribute.Int("vipd.frontends", s.Frontends))
		}
		if s.Batches > 0 {
			about = append(about, attribute.Int("vipd.batches", s.Batches), attribute.Int("vipd.bytes", s.Bytes))
		}
		t.span(ctx, s.Name, s.Began, s.Ended, s.Err, about...)
	}
	if r.Err != nil {
		engine.SetStatus(codes.Error, r.Err.Error())
	}
	engine.End(trace.WithTimestamp(r.Ended))
}

func (t *Tracer) span(ctx context.Context, name string, began, ended time.Time, err error, about ...attribute.KeyValue) {
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(began), trace.WithAttributes(about...))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(ended))
}

// cause returns "store" if the store has changed, and otherwise "node".
func cause(c *Compile) string {
	if c.Seen.IsZero() {
		return "node"
	}
	return "store"
}

// changedServices returns the services whose frontends a change affects, at most as many as the
// constant named, and the total number of affected frontends.
func changedServices(c *Compile) (names []string, frontends int) {
	all := map[string]bool{}
	for _, d := range snap.Diff(c.Before.Frontends, c.Desired.Frontends) {
		frontends++
		f := cmp.Or(d.New, d.Old)
		all[string(f.Service)] = true
	}
	names = slices.Sorted(maps.Keys(all))
	return names[:min(named, len(names))], frontends
}
