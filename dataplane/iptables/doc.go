// Package iptables forwards frontends with NAT rules: the kernel translates destinations, and no
// packet passes this process.
//
// All rules are in the nat table, whose chains see the first packet of each connection:
//
//	PREROUTING, OUTPUT -> VIPD-SERVICES -> VIPD-N-... -> VIPD-10.96.0.10:80/t -> [VIPD-E-... ->] DNAT to a backend
//
// VIPD-SERVICES and VIPD-N-... are a tree over the bits of destinations (tree.go): a first packet
// passes O(log services) rules, and a packet to any other address leaves after a few. An address
// with port ranges has its own node, in which the rules for ranges follow the rules for single
// ports (ranges.go). If the endpoints of a range listen at other ports, each endpoint has a chain
// with a rule for each port. Each frontend has a chain that chooses a backend by weighted chance,
// in turn, or by the client's address (choose.go). Many backends are distributed to a tree of
// additional chains. With affinity, sets of (VIP, port, client) with timeouts first return known
// clients to their backend (render.go).
//
// A change only writes the chains that differ (plan_linux.go), and all of a frontend's chains in
// the same transaction. The last rule of a frontend's chain is a note that no packet reaches while
// there are backends. Its comment describes the chain's content, so a new process recognizes the
// chain (note.go, observe_linux.go). Once a second, a cheap check asks the kernel whether the table
// has changed. If so, it compares the chains' sizes and hashes with what was last written. Chains
// that differ are written again, and chains without a frontend are deleted.
//
// Backends without new connections have no rules; conntrack keeps established connections.
// vipd/dataplane/internal/dnat deletes the conntrack entries that would still send flows to a
// removed backend.
//
// This package does not handle addresses, source ranges, refusals, masquerading and accepting,
// which belong to the guard (vipd/dataplane/guard). It sets no sysctls. The only mark that it sets
// is the mark by which the guard recognises connections.
package iptables
