// Package events provides the history of this node: a limited, ordered list of events in memory
// that any number of readers can follow. The component that detects a start or an end records the
// event once. The log line is written from the same event.
//
//	h := events.New(events.Options{Log: log})
//	go h.Run(ctx) // writes the log
//	h.Record(events.Event{Kind: events.Health, Service: "web", Endpoint: "10.0.0.1:80", Text: "is down",
//		Cause: "connection refused", Was: "up", Lasted: 3 * time.Hour})
//
// Readers request the events after their last event (Read), and wait for more (Changed). A slow
// reader does not block writers. It receives the number of dropped events.
//
// If the history is full, the most frequent kind loses its oldest event. So frequent events, such
// as applies or flapping endpoints, displace only older events of their own kind.
//
// The log is also a reader. A log that accepts no lines, such as a pipe without a reader, does not
// block writers.
//
// The history is lost when the process ends, but the log is not. The current state, such as
// problems, is not in this package but in the daemon's views.
package events
