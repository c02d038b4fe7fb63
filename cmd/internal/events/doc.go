// Package events provides the history of this node: a limited, ordered list of events in memory,
// which any number of readers follow. The component that detects a start or an end records it once,
// which also writes the line of the log.
//
//	h := events.New(events.Options{Log: log})
//	go h.Run(ctx) // writes the log
//	h.Record(events.Event{Kind: events.Health, Service: "web", Endpoint: "10.0.0.1:80", Text: "is down",
//		Cause: "connection refused", Was: "up", Lasted: 3 * time.Hour})
//
// Readers request the events after their last event (Read), and wait for more (Changed). A slow
// reader blocks no writer; it receives the number of dropped events.
//
// If the history is full, the most frequent kind loses its oldest event. So frequent events, such
// as applies or flapping endpoints, only displace older events of their own kind.
//
// The log is such a reader: a log that accepts no lines, such as a pipe without a reader, blocks no
// writer.
//
// The history does not outlive the process, the log does. Current state (problems, states) is not
// in this package, but in the daemon's views.
package events
