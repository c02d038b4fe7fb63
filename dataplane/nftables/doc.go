// Package nftables forwards frontends by maps of nf_tables: the kernel translates destinations, and no packet comes to this
// process. What a packet costs, and what a change costs, does not depend on the number of services.
//
// Each family has one table, vipd. Its chains are of type nat, which see the first packet of a connection only:
//
//	prerouting, output    (address, protocol, port) -> frontends: a number, in the packet's priority; none: the packet goes on
//	                      number -> choices: goto one of the chains that follow, which clear the priority
//	random-10             marks the connection, and translates to eps[(address, protocol, port, a random number below 10)]
//	turn-VIP/tcp/80       the same, with the next number of a counter of the frontend's own
//	hash-256              marks it, looks a number from the client's address up in slots, which has the id of a backend, and
//	                      translates to backends[(address, protocol, port, the id)]
//	...-sticky-10800      any of these with slots and backends, where sticky remembers the client's id for 10800 s (chains.go)
//	unserved              marks the connection of a frontend without active backends, for the guard to refuse
//	postrouting           clears the packet's priority, in which chains keep the id; it is there while any frontend has ids
//
// Chains are shared by all frontends with as many slots. A backend has as many slots as its weight asks for (slots.go). So
// a change of endpoints replaces elements, in one netlink message, and makes no chain but for the first frontend of a size.
//
// A packet looks maps up one after the other, and may see two generations of the rules. So a transaction that takes slots
// away comes a moment after the one that stops chains from choosing them (apply_linux.go).
//
// Each second a look asks the kernel for the number of the last transaction. If others have committed since, all of ours is
// read and compared: the rules by their handles, elements by their content (observe_linux.go). What a restart finds, it
// takes over, and writes only what differs.
//
// What this package does not do: addresses, source ranges, refusals, masquerading and accepting are the guard's
// (vipd/dataplane/host). The connections that are established, and the end of those to backends that are gone, are
// vipd/dataplane/internal/dnat's.
package nftables
