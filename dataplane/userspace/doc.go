// Package userspace is the dataplane that needs only sockets from the kernel. It terminates each
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
// A frontend's definition is immutable, and is replaced through an atomic pointer. A change affects
// neither the frontend's socket nor its connections, except for connections to removed backends. A
// backend that does not answer delays only its own clients. After a failure it rests (see [Rest]),
// so there are few such clients. ReportDials reports the results of dials. The daemon ejects a
// backend that continues to fail. An ejected backend is tried only after all other backends have
// failed.
//
// What a client sees:
//   - no active backend: the port is closed (a reset, or ICMP port unreachable), or silent with "drop". Established
//     connections continue. A UDP port that still has flows stays open only for them. On Linux vipd holds the
//     closed port, even while Close drains, so no other program on the host gets the clients.
//   - every backend refuses, times out or is at max_connections: a reset. The limit applies to all connections from
//     this node to a backend for a service's port, through any VIP.
//   - a source outside source_ranges: no answer, if the kernel supports and permits socket filters.
//     Otherwise, and with redirect, a reset after the accept.
//   - no PROXY header from a trusted network, although the frontend requires one: a reset.
//   - a backend's reset: a reset. Half-closed connections stay half-closed.
//
// The number of file descriptors is limited: a connection needs two, and a flow needs one. If none
// is free, connections are not accepted and wait in the kernel's queue. The connections of a
// frontend may use at most four times as many descriptors as are free, so the clients of one
// frontend can't use up all of them. With redirects, frontends share a queue, so clients beyond
// this limit are reset. UDP has no queue: vipd ends the oldest flow of the frontend with the most
// flows to make room, and connections leave a few descriptors free for flows. A flow also needs a
// local port. Flows leave half of the local ports to other programs on the host. If the system has
// no descriptors, accepting and dialing wait, and a client that was just accepted is reset after
// its connect timeout.
//
// A backend may also be a frontend of this dataplane. If it leads back to the client's frontend,
// directly or through other frontends, it gets no connections, because they would loop until all
// resources are used.
//
// Bytes are counted as they are relayed. Timeouts and drain deadlines are accurate to a tenth of a
// second, and idle timeouts to a tenth of their duration.
//
// # Loops
//
// On Linux, TCP connections are served by loops, one for each processor. A loop is a thread that
// waits in edge-triggered epoll for events on its connections' sockets. Only this thread uses the
// sockets. Other systems have two goroutines for each connection. The first loop accepts all
// connections, and serves them while its load is low. If it was busy for 85 % of the last 100 ms,
// less loaded loops get the new connections and half of the busy connections. One loop needs less
// processor time than two.
//
// A loop never blocks. It only tries to lock a frontend, and returns to the connection at its next
// turn if another goroutine holds the lock. Other goroutines (see aside) write logs, call hooks and
// read the node's addresses. All other locks are held only while a map is accessed. Other
// goroutines send letters (requests) to a loop, for example to cut a connection. A panic ends only
// its own connection, and the janitor reports a loop that is stuck for a second.
//
// Messages are read and written through the loop's buffer. If a read fills the buffer, splice moves
// the data that follows through a pipe. A connection has a pipe only while the pipe holds bytes.
// The descriptor budget and the host's memory limit the number of pipes. Without a pipe, the loop
// copies the data.
//
// # Redirect
//
// The nf_tables table vipd-redirect, one for each family, has a map from frontends to ports
// (vipd/dataplane/guard, Redirects). A redirect changes only the port if the VIP is an address of
// this host. Otherwise it also changes the address, to one of this host. TCP frontends share a
// port, and direct connections to it are reset. Frontends without active backends are redirected to
// closed or silent ports, which vipd holds. Otherwise a program on the host that listens on the
// frontend's port would get the clients. A UDP frontend has its own port, and also serves clients
// that send to it directly. When a UDP frontend's redirect is added or removed, vipd deletes the
// frontend's flows from conntrack. Otherwise clients that continue to send would reach a closed
// port. Flows to a socket that stays open for them are not deleted. A new TCP redirect deletes
// older conntrack entries of connections that are not established yet, so the client's next SYN is
// redirected.
//
// # Ranges of ports
//
// A frontend with a port range has a redirect in a second table, vipd-redirect-ranges, whose map
// contains port ranges. Its rules run after the first table's rules, so single ports win. The map
// divides the ports among overlapping ranges. TCP clients arrive at the shared port, and their
// sockets know the original destination. For UDP, vipd asks conntrack for the destination of each
// new flow. A backend's address contains the first port of its range.
//
// With the bind interception, each port has its own socket, up to 1,024 sockets. If a backend
// refuses one port of a range, the client is refused. The backend does not rest and the refusal is
// not reported, because other ports of the backend may be in use.
//
// Connections of another mode that conntrack still forwards are counted, and are cut when their
// endpoint is removed (dnat.Carried).
//
// # Clients' addresses
//
// With source = "client", the socket to a backend has the client's address (IP_TRANSPARENT), and a
// port that the kernel chooses. Package replies delivers the backend's replies to the socket. Its
// kernel objects exist while a frontend or a socket needs them, and remain after a handover if the
// next process needs them. If replies would not reach this node, the socket has this node's address
// (sourceFor). A dial without an answer does not count as a failure of the backend, because the
// reply may have bypassed this node.
//
// # Handing over
//
// HandOver sends everything to the next process, over a queue of package handover: listeners, UDP
// sockets and flows, and connections. A connection is sent as its two sockets, with the bytes that
// were read but not written. These bytes are in memory or in a pipe, which is sent unchanged. First
// the loops stop between two events, and deadlines in the past stop UDP reads, so no bytes are lost
// or read twice. Redirects remain, because the next process has their sockets. In that process,
// Inherit stores the items until Apply defines their frontends. Discard closes the unused items
// after everything wanted was applied, or after adoptTime.
//
// The package does not hold addresses, does not modify other programs' packets, and does not serve
// SCTP. The bind interception works without privilege if any user may bind the ports and addresses:
//
//	d, err := userspace.New(userspace.Options{Log: log, Intercept: userspace.Bind})
//	err = d.Apply(ctx, []dataplane.Change{{Key: f.Key, New: f}})
//	...
//	err = d.Close(drain, false)
package userspace
