package events

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// flushTime limits how long Run logs the remaining events after ctx is done.
const flushTime = 2 * time.Second

// atOnce is the maximum number of events that the log reads from the history in one step.
const atOnce = 100

// Run logs the events in order. After ctx is done, it logs the remaining events and returns. It may
// be called only once. If the log blocks, Run still returns after flushTime, but its goroutine
// remains blocked.
func (h *History) Run(ctx context.Context) {
	written, enough := make(chan struct{}), make(chan struct{})
	go func() { // Run waits for this goroutine, unless a write never returns
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

// write logs events until ctx is done and no event is left, or until the channel enough is closed.
func (h *History) write(ctx context.Context, enough <-chan struct{}) {
	since := h.first - 1
	for {
		more := h.Changed()
		events, missed := h.Read(since, atOnce)
		if missed > 0 {
			h.o.Log.Warn(fmt.Sprintf("%d events are missing from the log, because the log was too slow", missed))
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
			case <-more: // an event was recorded just before ctx was done; log it
			default:
				return
			}
		}
	}
}

// log writes an event to the log with the event's own timestamp, because the event may be much
// older.
func (h *History) log(e *Event) {
	ctx, handler := context.Background(), h.o.Log.Handler()
	if !handler.Enabled(ctx, e.Level) {
		return
	}
	line := slog.NewRecord(e.At, e.Level, e.message(), 0)
	line.AddAttrs(e.attrs()...)
	_ = handler.Handle(ctx, line) // ignored as in slog.Logger, because there is nowhere to report it
}

// message returns the event's text for the log. It does not name the subject, because the line's
// attributes do.
func (e *Event) message() string {
	switch {
	case e.Endpoint != "":
		return "endpoint " + e.Text
	case e.Service != "":
		return "service " + e.Text
	}
	return e.Text
}

// attrs returns the attributes of the event's log line.
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
