// Package replies delivers replies to this host although they have the address of a client as their
// destination. Userspace mode needs this for its sockets with clients' addresses (IP_TRANSPARENT).
//
//	endpoint --- reply to client ---> prerouting (1000): for a transparent socket? -> marked
//	                                  routing: marked -> table 118118 -> local, to the socket
//
// A [Path] consists of a table of nf_tables, a routing rule and a route, for each family. All have
// vipd's number as their protocol or name, so Cleanup finds them without a ledger. They exist only
// while they are needed. Packets of other connections, such as the client's own connections to an
// endpoint, are forwarded as before.
//
// ICMP messages about such connections, for example about the MTU of a path, are also delivered.
package replies
