// Package iptables carries frontends out by NAT rules: the kernel forwards, and no packet comes to this process.
//
// All rules are in the nat table, whose chains see the first packet of each connection:
//
//	PREROUTING, OUTPUT -> VIPD-SERVICES -> VIPD-N-... -> VIPD-10.96.0.10:80/t -> [VIPD-E-... ->] DNAT to a backend
//
// VIPD-SERVICES and VIPD-N-... are a tree over the bits of destinations (tree.go): a first packet crosses O(log services)
// rules, and one that is for no VIP leaves after a few. Each frontend has a chain, in which a backend is chosen by
// weighted chance, in turn, or by the client's address (choose.go), through a tree of further chains where there are
// many. With affinity, sets of (VIP, port, client) whose entries end by time lead clients back to their backend first
// (render.go).
//
// A change writes only the chains that differ (plan_linux.go), those of one frontend in one transaction. The last rule
// of a frontend's chain is a note that no packet reaches while there are backends: its comment says what the chain was
// made of, so that a restart finds what is there (note.go, observe_linux.go). The cheap look each second asks the kernel
// whether the table was changed at all. If so it compares chains, by their sizes and by prints of their content,
// with what the kernel had when they were written. What differs is written again; chains of no frontend are deleted.
//
// Backends that get no new connections have no rules: established connections live on in conntrack. Flows that conntrack
// would go on leading to a backend that is gone are vipd/dataplane/internal/dnat's.
//
// What this package does not do: addresses, source ranges, rejecting, masquerading and accepting are the guard's
// (vipd/dataplane/host); it sets no sysctls, and of marks only
// the one that it is told to, by which the guard knows connections.
package iptables
