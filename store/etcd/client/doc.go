// Package client talks to etcd. A Client reads keys and runs transactions and edits, a Lease keeps
// keys while their owner runs, and a Link reads folders and follows them.
//
// # Link
//
// A link reads all keys at one revision, in pages. Then it follows each scope with a watch, all on
// one stream. It opens the stream itself, because after an outage etcd's own watcher continues
// without a report, even if etcd was wiped. Every few seconds it requests etcd's revision and the
// progress of the stream; a stream that falls behind is closed. A link never resumes from a
// revision that was reported as progress: servers before 3.4.25 report it before events that are
// still on their way. Time is measured by the monotonic clock, so a jump of the host's clock does
// not look like an outage. A gRPC proxy of etcd does not report progress and may lose a watch.
// Behind a proxy, everything is read every few minutes.
//
// # Another history
//
// A wiped, restored or different etcd has another [History]: another cluster ID, a lower revision,
// or another value of the key that was written last. Each connection starts with a linearizable
// read that proves the history. If that fails, the error is [ErrAnother], and everything is read
// again.
//
// # Members
//
// All requests and watches of a client use one member at a time. A member that has lost the other
// members still accepts clients, answers gRPC's health checks with SERVING, and reports progress.
// Only a linearizable read shows its state, so the first member that answers such a read is used.
// If a request stays unanswered for a second, all members are asked again. The request is repeated
// at the first that answers, and watches on the former member end. A write is repeated with its
// conditions: if they no longer hold, the client compares its values with the present values.
//
// The package does not know the meaning of values.
package client
