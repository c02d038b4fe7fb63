// Package userspace is the dataplane that only needs sockets from the kernel: it terminates each
// connection at the VIP, and opens a new one to a backend.
//
//	client ---> VIP:port                                                  backend
//	              |  bind:     a socket of ours listens there                ^
//	              |  redirect: netfilter sends it to a shared port of ours   |
//	              v                                                          |
//	          loop: accept, source check, choice, dial, header --------------+
//	                                    |    ^  refused, timed out: the next backend
//	                                    v
//	                           loop: both directions, half-close and resets kept
//
//	client ---> VIP:port ---> read loop ---> flow of that client: a connected socket ---> backend
//	       <--- the same socket <----------- its goroutine <-----------------------------
//
// A frontend's definition is immutable behind an atomic pointer. A change affects neither its
// socket nor its connections, except for connections to removed backends. A backend that does not
// answer only delays its own clients. After a failure it rests (see [Rest]), so these are few.
// ReportDials reports the results of dials: the daemon ejects a backend that continues to fail,
// which is then only tried when all others have failed.
//
// What a client sees:
//   - no active backend: the port is closed (a reset, or ICMP port unreachable), or silent with "drop". Established
//     connections continue. A UDP port that still has flows stays open for them alone. On Linux vipd holds the
//     closed port, also while Close drains, so no other program of the host gets the clients.
//   - every backend refuses, times out or is at max_connections: a reset. The bound holds for all connections of
//     this node to a backend of a service's port, through any VIP.
//   - a source outside source_ranges: no answer, by a socket filter, if the kernel supports and permits it.
//     Otherwise, and with redirect, a reset after the accept.
//   - no PROXY header of a trusted network, although the frontend reads them: a reset.
//   - a backend's reset: a reset. Half-closed connections stay half-closed.
//
// Descriptors are budgeted: a connection needs two and a flow one. A connection that could not be
// served is not accepted and waits in the kernel's queue. The connections of a frontend may use at
// most four times as many descriptors as are left, so the clients of one frontend can't use up
// everything. With redirect, frontends share a queue, so further clients are reset. UDP has no
// queue: the oldest flow of the frontend with the most flows makes room, and connections reserve a
// few descriptors for flows. A flow also needs a local port, and flows leave half of the ports to
// the programs of the host. If the system still has no descriptors, accepting and dialing wait, and
// a client that was just accepted is reset after its connect timeout.
//
// A backend may also be a frontend of this dataplane. If it leads back to the client's frontend,
// directly or through others, it gets no connections, because they would loop until all resources
// are used.
//
// Bytes are counted as they pass. Timeouts and the ends of drains are accurate to a tenth of a
// second, idle timeouts to a tenth of their duration.
//
// # Loops
//
// On Linux, TCP has a loop for each processor: a thread that waits in epoll (edge-triggered) for
// events of its connections' sockets, and is their only user. Other systems have two goroutines for
// each connection. The first loop accepts all connections, and serves them while it has time. If it
// did not rest for 85 % of the last 100 ms, loops with time get the new connections, and half of
// the busy ones. One loop needs less processor time than two.
//
// A loop never blocks. It only tries to lock a frontend, and returns to the connection at its next
// turn if another goroutine has the lock. Logs, hooks and the reading of the node's addresses are
// left to a goroutine (aside). Other locks are only held for the access to a map. Other goroutines
// send letters to a loop, for example to cut a connection. A panic ends only its connection, and
// the janitor reports a loop that did not turn for a second.
//
// Messages are read and written through one buffer of the loop. Once a read fills the buffer, data
// moves by splice through a pipe, which a connection only has while it holds bytes. The number of
// pipes is limited by the budget and by the host's memory; without a pipe, a connection copies.
//
// # Redirect
//
// A table of nf_tables in each family, vipd-redirect, has a map from frontends to ports
// (vipd/dataplane/guard, Redirects). TCP frontends share a port, and direct connections to it are
// reset. Frontends without active backends are redirected to ports that are held and closed, or
// silent: without a redirect, any program of the host that listens on the port would get the
// clients. A UDP frontend has its own port, and also serves clients that find it. When the redirect
// of a UDP frontend is added or removed, conntrack forgets its flows. Otherwise clients that
// continue to send would reach a closed port. Flows to a socket that stays open for them are kept.
// A new redirect of TCP drops older connections that are not established yet: the client's next SYN
// is redirected.
//
// # Ranges of ports
//
// A frontend with a range of ports has a redirect in a second table, vipd-redirect-ranges, whose
// map has ranges of ports. It comes after the first table, so single ports win, and the map divides
// the ports among the ranges. TCP clients arrive at the shared port, with their original
// destination. For UDP, conntrack is asked for the destination of each new flow. Backends have the
// first port of their range.
//
// With the bind interception, each port has its own socket, up to 1,024 of them. If a backend
// refuses a port of a range, the client is refused. The backend does not rest and is not reported,
// because its other ports may be in use.
//
// Connections of another mode that conntrack carries on are counted, and cut when their endpoints
// are removed (dnat.Carried).
//
// # Handing over
//
// HandOver sends everything to the next process, over a queue of package handover: listeners, UDP
// sockets and flows, and each connection as its two sockets, with the bytes that were read but not
// written (from memory, or in a pipe, which is sent as it is). The loops stop between two events
// first, and deadlines in the past stop UDP, so both processes see the same bytes. Redirects stay,
// because the next process has their sockets. There, Inherit keeps the items until Apply brings
// their frontends. The first Intact, after everything wanted was applied, closes the rest.
//
// The package does not hold addresses, does not modify packets of others, and does not serve SCTP.
// The bind interception works without privilege if any user may bind the ports and addresses:
//
//	d, err := userspace.New(userspace.Options{Log: log, Intercept: userspace.Bind})
//	err = d.Apply(ctx, []dataplane.Change{{Key: f.Key, New: f}})
//	...
//	err = d.Close(drain, false)
package userspace
