// Package client communicates with etcd. A Client reads keys, and runs transactions and edits. A
// Lease keeps keys while their owner runs. A Link reads and follows folders.
//
// # Link
//
// A link reads all keys at one revision, in pages. Then it follows each scope with a watch. All
// watches share a stream. The link opens this stream itself, because the watcher of etcd's library
// continues after an outage without a report, even if etcd was wiped. Every few seconds the link
// requests etcd's revision and the progress of the stream. It closes a stream that falls behind. A
// link never resumes from a revision that was reported as progress, because servers before 3.4.25
// may report progress before earlier events. Time is measured with the monotonic clock, so a jump
// of the host's clock does not look like an outage. A gRPC proxy of etcd does not report progress
// and may lose a watch. Behind a proxy, everything is read every few minutes.
//
// # Another history
//
// A wiped, restored or different etcd has another [History]: another cluster ID, a lower revision,
// or another value of the last written key. Each connection starts with a linearizable read that
// verifies the history. If the history differs, the error is [ErrAnother], and everything is read
// again.
//
// # Members
//
// All requests and watches of a client use one member at a time. A member that has lost the other
// members still accepts clients, answers gRPC's health checks with SERVING, and reports progress.
// Only a linearizable read reveals its state, so the client uses the first member that answers such
// a read. If a request stays unanswered for a second, the client tests all members again. It
// repeats the request at the first member that answers, and ends watches on the former member. A
// write is repeated with its conditions. If they no longer hold, the client compares its values
// with the current values.
//
// The package does not interpret values.
package client
