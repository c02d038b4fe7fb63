// Package etcd is the source of services that a fleet of hosts shares, and what writes them.
//
//	PREFIX/services/NAME               a service, as JSON
//	PREFIX/endpoints/SERVICE/ID        one endpoint, usually under a lease
//	PREFIX/overrides/SERVICE/ADDRESS   what an operator said of an endpoint by hand
//	PREFIX/history/SERVICE/N           the last texts of a service (written and read by Writer alone)
//
// How a change comes through Source:
//
//	etcd  ->  link: reads all at one revision, then watches from the next  ->  state: decode, last good  ->  publish
//
// The link owns the connection. It reads pages of one revision, and follows with three watches on one stream, which it
// opens itself: the client's own watcher goes on in silence after an outage, also on an etcd that was wiped. Each time
// the stream is opened, and whenever the server's revision looks older than what was seen, a linearizable read tells
// whether this is still the same history; if not, or if what was missed is compacted, everything is read again and
// compared. A stream on which even requested progress is not reported is given up. What the server says of progress is
// not taken as a revision to go on from: servers before 3.4.25 report it ahead of events that are still on their way.
//
// The state belongs to one goroutine. A key that can't be decoded is a problem of its service, and its last good value
// stays; an unknown field is a warning. What is read as a whole is published as it was at that moment; afterwards the three
// folders are followed side by side, and a transaction over several may be seen in parts for some milliseconds. Equal values keep their pointers, and what is told close together is published
// together. The last good values are kept in a file, and served from there while etcd has not answered yet.
//
// # Endpoints that vanish together
//
// When the last endpoints of a service that has none in its own text end with their leases, it is more likely that the
// registrars lost etcd than that every server died. So all that ended within the last half minute stay in use, with a
// warning, until an endpoint is registered again (the others then have half a minute to come back), the service gets
// endpoints of its own, or it is deleted. Who leaves on purpose says so: a key that was deleted while its lease
// lives, that had no lease, or that said draining or weight 0, is gone when it is gone.
//
// What it does not do: it never writes under PREFIX as a Source (a role that may read the first three folders is
// enough), and it does not judge whether a service may have the addresses that it asks for.
package etcd
