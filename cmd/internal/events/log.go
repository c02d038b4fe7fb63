package events

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// flushTime bounds how long Run goes on at the end with what is not in the log yet.
const flushTime = 2 * time.Second

// atOnce is how many events are taken from the history for the log in one go.
const atOnce = 100

// Run writes the log, in the order of the events, until ctx ends and all that was recorded before is written. It is called
// once. A log that takes no lines does not keep it from returning: the goroutine that writes is then left behind in its
// last line.
func (h *History) Run(ctx context.Context) {
	written, enough := make(chan struct{}), make(chan struct{})
	go func() { // waited for, but for a line that does not come to an end
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

// write logs what was recorded and what comes, until ctx ends and nothing is left, or there was enough.
func (h *History) write(ctx context.Context, enough <-chan struct{}) {
	since := h.first - 1
	for {
		more := h.Changed()
		events, missed := h.Read(since, atOnce)
		if missed > 0 {
			h.o.Log.Warn(fmt.Sprintf("%d events are not in the log, which did not take them in time", missed))
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
			case <-more: // at the last moment
			default:
				return
			}
		}
	}
}

// log writes the line of an event, with the time of the event: the log may be late.
func (h *History) log(e *Event) {
	ctx, handler := context.Background(), h.o.Log.Handler()
	if !handler.Enabled(ctx, e.Level) {
		return
	}
	line := slog.NewRecord(e.At, e.Level, e.message(), 0)
	line.AddAttrs(e.attrs()...)
	_ = handler.Handle(ctx, line) // as a Logger does: there is nowhere to say so
}

// message is the event's line in the log, which has the subject in attributes.
func (e *Event) message() string {
	switch {
	case e.Endpoint != "":
		return "endpoint " + e.Text
	case e.Service != "":
		return "service " + e.Text
	}
	return e.Text
}

// attrs are the attributes of the event's line in the log.
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
