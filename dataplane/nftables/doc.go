// Package nftables forwards frontends with maps of nf_tables: the kernel translates destinations,
// and no packet passes this process. Neither a packet's cost nor a change's cost depends on the
// number of services.
//
// Each family has a table, vipd. Its chains are of type nat, so they only see the first packet of a
// connection:
//
//	prerouting, output    (address, protocol, port) -> frontends: a number, stored in the packet's priority; without an
//	                      element the packet continues unchanged
//	                      number -> choices: goto one of the following chains, which clear the priority
//	                      (address, protocol, an open port) -> ranges: the number of a range -> range-choices
//	random-10             marks the connection, and translates to eps[(address, protocol, port, a random number below 10)]
//	turn-VIP/tcp/80       like random-10, but uses the next number of the frontend's counter
//	hash-256              marks it, maps a hash of the client's address to a backend id in slots, and translates to
//	                      backends[(address, protocol, port, the id)]
//	...-sticky-10800      any of these chains, but with slots and backends; sticky remembers the client's id for 10800 s (chains.go)
//	...-sticky-10800-vip  all of a VIP's services share the memory of clients (see [balancer.AffinityMemory]); with -not-0123abcd-or-service-web,
//	                      clients with a foreign endpoint continue in ...-sticky-10800-service-web
//	random-VIP/tcp/8000-8999
//	                      any of these chains, but for a port range: its keys in range-eps, range-slots and range-backends contain the number of
//	                      the range instead of the port, and the translation keeps the port
//	random-VIP/tcp/8000-8999-moved
//	                      for a range with a target_port: range-targets[(address, protocol, the number of the range, port)] is the new port
//	unserved              marks a connection to a frontend without active backends, so that the guard refuses it
//	pass-1                lets a connection to a withdrawn frontend continue unchanged
//	postrouting           clears the packet's priority, in which chains store the id; exists while any frontend has ids
//
// All frontends with the same number of slots share a chain. A backend's number of slots depends on
// its weight (slots.go). Each port range has its own chain, because the range's number is a
// constant in the rules. So a change to endpoints only replaces elements, in one netlink message. A
// chain is created only for the first frontend with a number of slots.
//
// The map range-targets has an element for each port of a moved range. The kernel can also add an
// offset to the port (NF_NAT_RANGE_PROTO_OFFSET). But it then chooses the next port if a flow with
// the translated addresses exists, such as a flow from the same client port to another frontend. So
// the client would reach the wrong port of the endpoint.
//
// A packet makes several lookups, and may see the rules before and after a transaction. So the
// transaction that deletes slots follows a moment after the transaction that stops chains from
// choosing them (apply_linux.go).
//
// Once a second, a check asks the kernel for the number of the last transaction. If other programs
// have committed since then, vipd reads its whole table and compares it: rules by handle, elements
// by content (observe_linux.go). After a restart, vipd adopts the existing table and writes only
// differences.
//
// This package does not handle addresses, source ranges, refusals, masquerading and accepting,
// which belong to the guard (vipd/dataplane/guard). vipd/dataplane/internal/dnat handles
// established connections, and ends connections to removed backends.
package nftables
