// Package events is what has happened on this node: an ordered list of events in memory, bounded,
// that any number of readers follow. The part that sees something begin or end records it, once;
// that is the line in the log too.
//
//	h := events.New(events.Options{Log: log})
//	go h.Run(ctx) // writes the log
//	h.Record(events.Event{Kind: events.Health, Service: "web", Endpoint: "10.0.0.1:80", Text: "is down",
//		Cause: "connection refused", Was: "up", Lasted: 3 * time.Hour})
//
// Readers ask for what came after the last event that they have (Read), and wait for more
// (Changed). A reader that is slow blocks no writer: it is told how many events were dropped.
//
// When the history is full, the kind of which it has the most loses its oldest event. So a stream
// of one kind, such as applies or a flapping rack, pushes out its own past and never that of the
// others.
//
// The log is such a reader: a log that takes no lines, such as a pipe without a reader, stops no
// writer.
//
// The history does not outlive the process, the log does. It is not for what is so (problems,
// states): that is in the views of the daemon.
package events
