// Package replies delivers replies to this host even though their destination is a client's
// address. Userspace mode needs this for its sockets that have clients' addresses (IP_TRANSPARENT).
//
//	endpoint --- reply to client ---> prerouting (1000): for a transparent socket? -> marked
//	                                  routing: marked -> table 118118 -> local, to the socket
//
// A [Path] consists of an nf_tables table, a routing rule and a route, for each family. Cleanup
// finds them without a ledger, by the table's name and vipd's routing protocol number. They exist
// only while they are needed. Packets of other connections, such as the client's own connections to
// an endpoint, are forwarded as before.
//
// ICMP messages about such connections, for example about the path MTU, are also delivered.
package replies
