// Package events provides this node's history: an ordered list of recent events in memory. Any
// number of readers can follow it. The component that detects a change records a single event, from
// which the log line is also written.
//
//	h := events.New(events.Options{Log: log})
//	go h.Run(ctx) // writes the log
//	h.Record(events.Event{Kind: events.Health, Service: "web", Endpoint: "10.0.0.1:80", Text: "is down",
//		Cause: "connection refused", Was: "up", Lasted: 3 * time.Hour})
//
// Readers request the events after the last event that they have read (Read), and wait for more
// events (Changed). A slow reader does not block writers. If events were dropped before a reader
// could read them, Read returns their number.
//
// If the history is full, the oldest event of the most frequent kind is dropped. So many events of
// one kind, such as applies or flapping endpoints, displace only older events of the same kind.
//
// The log is also a reader. If it blocks, for example because it is a pipe that nobody reads,
// writers continue.
//
// The history is lost when the process exits, but the log remains. The history does not contain the
// current state, such as problems, which the daemon's views provide.
package events
