// Package client talks to etcd. A Client asks, and carries out transactions and edits; a Lease keeps keys for as long as their owner
// runs; a Link reads folders and follows them.
//
// The link owns the connection. It reads pages of one revision, and follows with a watch for each place on one stream, which
// it opens itself: the client's own watcher goes on in silence after an outage, also on an etcd that was wiped. Each time
// the stream is opened, and whenever the server's revision looks older than what was seen, a linearizable read tells
// whether this is still the same history; if not, or if what was missed is compacted, everything is read again and
// compared. Every few seconds the link asks how far etcd is, and the stream for its progress: one that stays behind is given up.
// What the server says of progress is not taken as a revision to go on from: servers before 3.4.25 report it ahead of events that
// are still on their way. What passes is measured by the monotonic clock, so that a jump of the host's clock is not taken for an outage.
// etcd's gRPC proxy has no answer to requests for progress and may lose a watch: behind it everything is read every few minutes.
//
// # Members
//
// All requests and watches of a client use one member at a time (members). A member whose way to the others is cut still accepts
// clients, answers gRPC's health checks with SERVING, and reports progress: only a linearizable read tells. So the first member
// that answers one is used. When a request stays unanswered for a second, the members are asked again, and the first to answer is
// used from then on; the request is repeated there, and watches on the former member end. A write is repeated with its conditions:
// if they no longer hold, what it was to write is compared with what there is.
//
// What it does not do: it does not know what values mean.
package client
