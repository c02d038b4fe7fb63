// Package userspace is the dataplane that needs nothing from the kernel but sockets: it ends each connection at the VIP
// and opens a new one to a backend.
//
//	client ---> VIP:port                                                  backend
//	              |  bind:     a socket of ours listens there                ^
//	              |  redirect: iptables sends it to a shared port of ours    |
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
// delays only who was sent there; and after one failure it rests (see Rest), so that few are.
//
// What a client sees:
//   - no active backend: the port is closed (a reset, or ICMP port unreachable), or, with "drop", silent. Connections
//     that are established live on. A UDP port that still has flows stays open for those alone.
//   - every backend refuses, times out or is at max_connections: a reset. The bound holds for all connections of this
//     node to one backend of a service's port, whatever VIP they came through.
//   - a source outside source_ranges: no answer, by a socket filter, where the kernel has those; elsewhere, and with
//     redirect, a reset after the accept.
//   - a backend's reset: a reset. Half-closed connections stay half-closed.
//
// Descriptors are budgeted: a connection takes two and a flow one, and what could not be carried on is not accepted:
// it waits in the kernel's queue. UDP has no queue to wait in: there the oldest flow makes room.
//
// The package does not hold addresses, and does not touch packets of others. It does not carry SCTP. Without privilege
// it can do all that the bind interception needs, as long as ports and addresses are such that anyone may bind them:
//
//	d, err := userspace.New(userspace.Options{Log: log, Intercept: userspace.Bind})
//	err = d.Apply(ctx, []dataplane.Change{{Key: f.Key, New: f}})
//	...
//	err = d.Close(drain, false)
package userspace
