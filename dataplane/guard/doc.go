// Package guard keeps in netfilter what all modes share: VIPs that vipd holds answer on the ports of services alone, source
// ranges, refusals, marks, and the node's address as the source where replies would miss it otherwise. The host says what is
// wanted and what is applied, and when: Prepare before a dataplane applies frontends, Finish after it.
//
// It is a table of nf_tables for each family, vipd-guard, of which each change is one transaction: a constant handful of rules over
// sets (see setDefs). Most chains are of type nat: they see the first packet of a connection, and no other. A packet meets
//
//	prerouting           to an owned address, which this host reaches by the interface that the packet came in by: dropped, as
//	                     another host has it, or none
//	prerouting, output   TCP without SYN to what is served -> reset, in modes where conntrack alone knows connections
//	                     special    -> restricted and not allowed, nor from the host itself: dropped; silent: dropped;
//	                                   marked as ours; rejected: refused; always and never: marked so
//	                     frontends  -> marked as ours
//	output               TCP, rejected -> refused
//	                     then the mode's own: DNAT, REDIRECT, virtual servers
//	input                known -> passes; rejected -> refused; to a held address: ICMP and served pass, pending is silent, all
//	                     else is refused. If the mode translates all connections, served is silent: conntrack knew these
//	                     before the frontend, and the mode makes it forget them
//	restarts             a SYN or INIT of a known connection to an endpoint in dead -> noted in restarts, dropped; see restarts.go
//	segment-size         ours, the first segment of either side: its size is clamped to what the links of its path take, and to
//	                     what clamps has for the place that the connection was opened to, in input too
//	source               ours, not never: with onearm's pair of interfaces by which it came in and goes out, or marked
//	                     always -> masqueraded. A program of the host comes in by none
//
// Frontends with forward = "dr" or "tunnel" are answered past this node. Tracked, their connections would be new until they
// time out, all but their first packets invalid, and idle ones new again, so they are not: separate chains keep them from
// being tracked, and sort what opens a connection.
//
// What a filter of iptables drops, such as Docker's or ufw's, no table of nf_tables can accept: an acceptor keeps three chains in
// these filters if there are any. Another firewall's own tables have to be told by their administrator.
//
// Entries of the sets that sort packets, and of held, are added before the frontend is applied, and stay until no applied
// one needs them; what opens or refuses a port follows what is both wanted and applied. An address is added when the
// guard stands, and the guard is removed after the last address: no port of the host's own is ever open on a VIP. While
// nf_tables is busy, addresses wait.
//
// A trial proves that the kernel takes the guard, see Try. It needs reject in prerouting (Linux 5.9), networks in concatenations
// (5.6), and nft_ct, nft_nat, nft_masq, nft_reject and their like. Kernel modes don't work without. In userspace mode the
// guard then is a problem, and nothing waits for it: addresses answer on every port, and the mode restricts clients by itself.
// Frontends with source ranges on addresses that exist anyway, and those on owned addresses, wait for the guard: see Ready.
//
// Whether the table is intact shows in the generation of nf_tables and the handles of rules. If another program has changed the
// table, its sets are read. The acceptor compares fingerprints of its chains.
//
// Redirects are what a mode that ends connections itself needs beside the guard: a table that leads connections to frontends to
// ports of this host.
//
// Earlier versions kept the guard in iptables and ipsets on some hosts: see removeFormer.
//
// A further concern of all modes is a set in setDefs, its rules in layout, and in losses what is lost without it.
package guard
