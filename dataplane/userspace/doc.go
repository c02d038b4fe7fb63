// Package userspace is the dataplane that needs nothing from the kernel but sockets: it ends each connection at the VIP
// and opens a new one to a backend.
//
//	client ---> VIP:port                                                  backend
//	              |  bind:     a socket of ours listens there                ^
//	              |  redirect: netfilter sends it to a shared port of ours   |
//	              v                                                          |
//	          accept loop ---> handler: source check, choice, dial, header --+
//	                                    |    ^  refused, timed out: the next backend
//	                                    v
//	                           relay: two goroutines, half-close and resets kept
//
//	client ---> VIP:port ---> read loop ---> flow of that client: a connected socket ---> backend
//	       <--- the same socket <----------- its goroutine <-----------------------------
//
// A frontend is a value behind an atomic pointer: a change of it touches neither its socket nor its connections, but
// for those of backends that are gone. Dialing never happens in an accept loop, so that a backend that does not answer
// delays only who was sent there; and after one failure it rests (see Rest), so that few are. Who wants to know is told what
// comes of dials (ReportDials): the daemon ejects a backend that goes on failing, which is then tried only when every other
// one has failed.
//
// What a client sees:
//   - no active backend: the port is closed (a reset, or ICMP port unreachable), or, with "drop", silent. Connections
//     that are established live on. A UDP port that still has flows stays open for those alone. On Linux the port is
//     held meanwhile, and while Close drains, so that no program of the host gets the clients.
//   - every backend refuses, times out or is at max_connections: a reset. The bound holds for all connections of this
//     node to one backend of a service's port, whatever VIP they came through.
//   - a source outside source_ranges: no answer, by a socket filter, where the kernel has those and lets us; elsewhere,
//     and with redirect, a reset after the accept.
//   - a backend's reset: a reset. Half-closed connections stay half-closed.
//
// Descriptors are budgeted: a connection takes two and a flow one, and what could not be carried on is not accepted:
// it waits in the kernel's queue, but for one at each listener that was waiting for it. On Linux, bulk moves through
// pipes. A connection has one only while bytes are in it; there are few, by their descriptors, which are part of the
// budget, and by the host's memory, and connections that find none copy. A frontend's connections may hold at most
// four times as many as are left, so that the clients of one can't take those of all; with redirect, where frontends
// share a queue, it resets clients beyond that. UDP has no queue to wait in: there the oldest flow of the frontend
// with the most makes room, and connections leave a few descriptors to flows. A flow takes a local port, too, of which
// flows leave half to the programs of the host. Where the system is out of descriptors all the same,
// accepting and dialing wait, and a client that was accepted just then is reset after its connect timeout.
//
// A backend may be a frontend of this dataplane, too. One that leads back to where the client came from, by however many
// others, takes no connections: these would come round until nothing is left.
//
// Bytes are counted as they pass. Timeouts and the ends of drains are kept to a tenth of a second, idle timeouts to a
// tenth of themselves.
//
// # Redirect
//
// One table of nf_tables a family, vipd-redirect, has a map from frontends to ports (vipd/dataplane/guard, Redirects). TCP
// frontends share a port; a connection made straight to it is reset. Frontends without active backends lead to ports that are held and closed, or silent:
// without a redirect, any program of the host that listens on the port would get the clients. A UDP frontend has a port of its
// own, and serves clients that find it as it serves those that come through the VIP. When the redirect of a UDP frontend comes
// or goes, conntrack's memory of its flows is dropped, or clients that go on sending would be led to a port that is closed: but for
// that of flows to a socket that stays open for them. A new redirect of TCP drops connections under way that are older than it:
// the client's next SYN is redirected.
//
// Connections of another mode that conntrack carries on are counted, and cut with their endpoints (dnat.Carried).
//
// # Handing over
//
// HandOver sends everything to the process that takes this one's place, over a queue of package handover: listeners, UDP sockets and
// flows, and each connection as its two sockets, with the bytes that were read and not written (in memory, or in a pipe, which is
// sent as it is). Deadlines in the past stop all reads and writes first, so that both sides of the queue see the same bytes. Redirects
// stay and lead to sockets that the next process has. In the next process, Inherit keeps the items until Apply brings their
// frontends, and the first Intact, after everything wanted was applied, closes the rest.
//
// The package does not hold addresses, and does not touch packets of others. It does not carry SCTP. Without privilege
// it can do all that the bind interception needs, as long as ports and addresses are such that any user may bind them:
//
//	d, err := userspace.New(userspace.Options{Log: log, Intercept: userspace.Bind})
//	err = d.Apply(ctx, []dataplane.Change{{Key: f.Key, New: f}})
//	...
//	err = d.Close(drain, false)
package userspace
