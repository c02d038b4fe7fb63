package events

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// flushTime is the maximum time at the end of Run to log the remaining events.
const flushTime = 2 * time.Second

// atOnce is the number of events that the log reads from the history at once.
const atOnce = 100

// Run logs the events, in their order, until ctx ends and everything recorded before is logged. It
// may be called once. A log that blocks does not block the return: the writing goroutine then stays
// blocked in its last line.
func (h *History) Run(ctx context.Context) {
	written, enough := make(chan struct{}), make(chan struct{})
	go func() { // Run waits for it, unless a line never ends
		defer close(written)
		h.write(ctx, enough)
	}()
	<-ctx.Done()
	timer := time.NewTimer(flushTime)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
		close(enough)
	}
}

// write logs recorded and new events, until ctx ends and nothing is left, or enough is closed.
func (h *History) write(ctx context.Context, enough <-chan struct{}) {
	since := h.first - 1
	for {
		more := h.Changed()
		events, missed := h.Read(since, atOnce)
		if missed > 0 {
			h.o.Log.Warn(fmt.Sprintf("%d events are not in the log, because it was too slow", missed))
		}
		for i := range events {
			select {
			case <-enough:
				return
			default:
			}
			h.log(&events[i])
			since = events[i].Seq
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
			select {
			case <-more: // just in time
			default:
				return
			}
		}
	}
}

// log logs an event with the event's time, because the log may be late.
func (h *History) log(e *Event) {
	ctx, handler := context.Background(), h.o.Log.Handler()
	if !handler.Enabled(ctx, e.Level) {
		return
	}
	line := slog.NewRecord(e.At, e.Level, e.message(), 0)
	line.AddAttrs(e.attrs()...)
	_ = handler.Handle(ctx, line) // like a Logger, because the error can't be reported anywhere
}

// message returns the event's text in the log, whose attributes have the subject.
func (e *Event) message() string {
	switch {
	case e.Endpoint != "":
		return "endpoint " + e.Text
	case e.Service != "":
		return "service " + e.Text
	}
	return e.Text
}

// attrs returns the attributes of the event's line in the log.
func (e *Event) attrs() []slog.Attr {
	all := []slog.Attr{slog.String("kind", string(e.Kind))}
	text := func(key, value string) {
		if value != "" {
			all = append(all, slog.String(key, value))
		}
	}
	length := func(key string, d time.Duration) {
		if d > 0 {
			all = append(all, slog.Duration(key, d.Round(time.Millisecond)))
		}
	}
	text("service", string(e.Service))
	text("backend", e.Endpoint)
	text("cause", e.Cause)
	text("was", e.Was)
	length("lasted", e.Lasted)
	length("took", e.Took)
	if e.Revision != 0 {
		all = append(all, slog.Int64("rev", e.Revision))
	}
	return all
}
