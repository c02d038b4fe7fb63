// Package ipvs carries frontends out by virtual servers of the kernel's IPVS: its tables are hashes, so that a packet and
// a change cost the same however many services there are.
//
//	client -> mangle PREROUTING -> routing: the VIP is local -> mangle, filter INPUT -> IPVS -> OUTPUT, POSTROUTING -> endpoint
//	endpoint -> FORWARD, where IPVS puts the VIP back -> POSTROUTING -> client
//
// One frontend is one virtual server, and each backend one destination (render.go). A change is compared with what is
// known to be in the kernel (server.go), and only the messages that differ are sent, in few system calls: what is made
// before what goes (apply.go). Where the kernel's answer shows that something else is there, that virtual server is read
// and the change made again.
//
// # Whose a virtual server is
//
// The kernel has no room for a mark on a virtual server, so that a ledger in the run folder names ours (ledger.go). It is
// written before one is made. A virtual server that it does not name is another program's and is never touched, not even
// if it is just what a frontend comes to: its maker may rely on it, and we would delete it some day. Such a
// frontend fails, and the error says what stands in its way and the command that removes it. That is also the way out
// where the ledger was deleted while virtual servers were there. A reboot empties both.
//
// # Drains
//
// A backend that gets no new connections, for whichever reason, has weight 0 at once. Its destination goes when its last
// connection has ended, or its time (Backend.Until), or it is gone from the frontend, whichever comes first: the kernel
// ends what is left then, with net.ipv4.vs.expire_nodest_conn, which the host's side sets (drains.go). Where it had no
// destination, none is made. One that comes back gets its weight by one message, and keeps its connections. What a
// frontend that goes as a whole leaves is treated alike, with its drain timeout; the ledger tells the next process. UDP is
// not waited for: the next packet of a flow goes elsewhere. Clients with affinity are not sent on to what drains, with
// net.ipv4.vs.expire_quiescent_template.
//
// Flows that conntrack would go on leading past a virtual server are dropped, and connections of another mode that it carries on are
// counted (dnat.Carried). Connections that get no answer are
// told from conntrack (suspect_linux.go).
//
// # What the kernel's schedulers do
//
// They bear their names but for random, which is wrr. sh and mh go by the client's address, without its port, and have
// their flag for falling back: without, clients whose hash leads to a destination that drains or is full would be refused.
// dh has no such flag: while an endpoint drains, fo stands in for it, which also gives all clients of a VIP to one
// destination. The table of sh has 256 places: weights are reduced to fit, and of more than 256 endpoints some get
// nothing (mh has no such bound).
//
// MaxConnections is the upper threshold of a destination, and the lower as well, so that a connection that ends makes
// room for one at once. The kernel counts those that are closing, too, for two minutes.
//
// # What is counted
//
// Connections and bytes come from destinations, whose counters are added to ours before they go, so that they never go
// back (counts.go). The kernel sums its counters up every two seconds: what a destination counts in its last moments
// shows only if it comes back.
//
// What this package does not do: addresses, source ranges, rejecting, masquerading and sysctls are the host's side
// (vipd/dataplane/host). A frontend without any backend has no virtual server: the guard answers its clients.
package ipvs
