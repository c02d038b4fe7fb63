// Package etcd is the source of services that a fleet of hosts shares, and what writes them.
//
//	PREFIX/services/NAME               a service, as JSON
//	PREFIX/endpoints/SERVICE/ID        one endpoint, usually under a lease
//	PREFIX/overrides/SERVICE/ADDRESS   what an operator said of an endpoint by hand
//	PREFIX/vips/ADDRESS                the name of the service that the address is allocated to
//	PREFIX/pools/NAME                  the networks that addresses are allocated from
//	PREFIX/nodes/NODE/config           what a node is told: its mode and zone
//	PREFIX/nodes/NODE/live, status     that a node is there, and how it is, under one lease
//	PREFIX/hosts/NODE                  the node's own addresses, under the same lease
//	PREFIX/history/SERVICE/N           the last texts of a service
//	PREFIX/claims/all                  the service that claimed something last: turns for writers
//	PREFIX/health/NODE/live            that a node takes part in the fleet's health checks
//	PREFIX/health/NODE/SERVICE/ADDRESS what it has found of an endpoint, under the same lease as that
//
// A Source follows the first five, hosts and its own node's config. A Presence writes its own node's live, status and hosts. A
// HealthBoard follows health/, on its own connection, and a HealthVoter writes its own node's folder there, both only
// while a service asks for it. All else is written by a Writer, and by a Registrar for one endpoint. These are the rights
// that a daemon's role needs; without those to vips, hosts and config, the rest is followed all the same, with a problem.
//
// How a change comes through Source:
//
//	etcd  ->  link: reads all at one revision, then watches from the next  ->  state: decode, last good  ->  publish
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
// The state belongs to one goroutine. A key that can't be decoded is a problem of its service, and its last good value
// stays; an unknown field is a warning. What is read as a whole is published as it was at that moment; afterwards the
// folders are followed side by side, and a transaction over several may be seen in parts for some milliseconds. Equal
// values keep their pointers, and what is told close together is published together. The last good values are kept in a
// file, and served from there while etcd has not answered yet.
//
// # Endpoints that vanish together
//
// When the last endpoints of a service that has none in its own text end with their leases, it is more likely that the
// registrars lost etcd than that every server died. So all that ended within the last half minute stay in use, with a
// warning, until an endpoint is registered again (the others then have half a minute to come back), the service gets
// its own endpoints, or it is deleted. Who leaves on purpose says so: a key that was deleted while its lease
// lives, that had no lease, or that said draining or weight 0, is gone when it is gone.
//
// # An etcd that was wiped
//
// Where the history is another one, by the cluster's ID, a revision that went back or a key that is not what it was, and
// lacks services, what was read before stays in use and in the file, with a problem. What the new history has is followed
// meanwhile, and counts once it has services and none have come for half a minute. Services that are removed in the history
// that is followed are gone at once.
//
// # Addresses from pools
//
// Where the vips of a service say "auto", Writer.Apply puts an address of the pool named default ("auto:POOL": of POOL) into
// vips/, in the transaction that writes the service, on the condition that it is free. The service's text keeps "auto",
// and Source joins the two (balancer.Service.Allocated). An address stays with its service while that asks for it, however
// often it is applied, and is given back in the transaction in which it no longer does. Where to begin looking in a pool
// follows from the service's name, so that those who apply at the same time seldom meet; who loses looks again. What other
// services name in their own texts is not given away, as far as it was there when the texts were read.
//
// # Claims
//
// No two services may come to claim one address, port and protocol, or one node port, and a transaction can't look at all
// texts. So a transaction that brings about a claim writes claims/all, on the condition that no other has written below claims/ since
// the texts were read (Change.Checked). A writer that was overtaken gets a StaleError, and reads again. Other programs don't write
// there: if two services claim the same, the hosts serve the one that had it first.
//
// # Health checks
//
// What nodes have found is a key for each node and target, written when a verdict changes and never else, many in one
// transaction. Each node has its own folder, so that its role can't vote for others. Who takes part is in that folder
// too, and not read from nodes/: there every status would come along, from every host to every host.
//
// What it does not do: it does not judge whether a service may have the addresses that it asks for.
package etcd
