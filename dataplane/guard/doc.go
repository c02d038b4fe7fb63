// Package guard keeps in netfilter what all modes share: VIPs that vipd holds answer on the ports of services alone, source
// ranges, refusals, marks, and the node's address as the source where replies would miss it otherwise. The host says what is
// wanted and what is applied, and when: Prepare before a dataplane applies frontends, Finish after it.
//
// It has one of two forms, of the same sets (see setDefs) and in the same order of what comes in and goes when.
//
// Native: a table of nf_tables for each family, vipd-guard, of which each change is one transaction. Most chains are of type
// nat: they see the first packet of a connection, and no other. A packet meets
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
// being tracked, and sort what opens a connection. What a filter of iptables drops no other table can accept: an acceptor
// keeps three chains there, where iptables has filters. Another firewall's own tables have to be told by who runs them.
//
// Legacy: chains in iptables over ipsets, for kernels that can't do the above, see choose.
//
// A packet meets them in this order; those for no VIP pay for the comparisons with a few networks, and for a look at the mark of their
// connection:
//
//	mangle PREROUTING           to an address in vipd-owned which is none of this host's: dropped
//	mangle PREROUTING, OUTPUT   to one of the networks that cover all frontends' addresses, opening a connection:
//	    vipd-frontends          -> the connection is marked as ours
//	    vipd-special            -> vipd-restricted and not vipd-allowed, nor from the host itself: dropped
//	                               vipd-silent: dropped; vipd-masquerade: the packet is marked; vipd-never: the connection too
//	                               the connection is marked as ours
//	nat PREROUTING, OUTPUT      the mode's own: DNAT or REDIRECT
//	filter FORWARD, OUTPUT      ours: the segment size of TCP connections is clamped to what their links take
//	filter FORWARD              ours: known -> accepted; TCP without SYN -> reset (in modes where conntrack alone knows
//	                               connections; in INPUT and OUTPUT too); translated -> marked if it leaves where it
//	                               came in, accepted; vipd-rejected -> refused
//	filter INPUT                ours: known, translated or vipd-served -> accepted; vipd-rejected -> refused
//	                            to one of the networks that cover vipd-held, new, to an address in it: ICMP and vipd-served
//	                               pass, all else is refused, or dropped where vipd-pending has the address: none of its
//	                               frontends has been applied yet; vipd-served is dropped if the mode translates all
//	filter OUTPUT               ours, new: TCP, or leaving the host, and in vipd-rejected -> refused; else marked: an endpoint
//	                               may have no route to the source that the VIP's route names
//	mangle INPUT, POSTROUTING   ours, opening a TCP connection: its segment size is bounded where its service has an mss, by a
//	                               rule for each such frontend
//	nat POSTROUTING             ours, not vipd-never: marked, or from its own destination -> masqueraded
//
// In ipvs mode the kernel's virtual servers take packets to VIPs at the end of INPUT, or, from the host itself, in OUTPUT
// between mangle and filter. What they send to endpoints goes through OUTPUT and POSTROUTING; only answers go through
// FORWARD. So in that mode
//
//	mangle PREROUTING           also adds the client, with the interface that it came in by, to vipd-arrived, for a second
//	filter OUTPUT               ours: known, or from elsewhere -> accepted. What programs of the host begin is left to
//	                               the rules of others, as in all modes
//	nat POSTROUTING             ours: in vipd-arrived with the interface that it leaves by -> masqueraded: filter FORWARD,
//	                               where both interfaces are known, sees no such packet, and POSTROUTING but the second
//
// Frontends with forward = "dr" or "tunnel" are answered past this node. Tracked, their connections would be new until
// they time out, all but their first packets invalid, and idle ones new again, so they are not:
//
//	raw PREROUTING, OUTPUT      to or from vipd-direct: not tracked
//	mangle, filter              what is not tracked and opens no TCP connection is let through; the rest meets the rules
//	                               above: source ranges, refusals
//	filter INPUT, OUTPUT        vipd-direct: accepted, or refused; OUTPUT also tunnels to vipd-tunnels
//
// Entries of the sets that sort packets, and of held, are there before the frontend is applied and until no applied
// one needs them; what opens or refuses a port follows what is both wanted and applied. An address is added when the
// guard stands, and the guard goes after the last address: no port of the host's own is ever open on a VIP. Where
// iptables is busy addresses wait; where there is none, that is a problem, and they do not.
// So do frontends with source ranges on addresses that are there anyway, and those on owned addresses: see Ready. What the
// kernel refuses for some seconds the guard does without, and tries again from time to time; meanwhile frontends with source
// ranges are for modes that restrict by themselves alone.
//
// Rules are replaced in one transaction, in legacy form one a part, so that nothing is open in between. Whether they are still
// there is seen by the generation of nf_tables and the handles of rules, or by the sizes of chains, how much leads to them and
// prints of what they contain; whether entries are, by reading the sets where others have changed something, or their headers.
//
// Redirects are what a mode that ends connections itself needs beside the guard, in the same two forms: connections to
// frontends are led to ports of this host.
//
// A further concern of all modes is a set in setDefs, its rules in both forms, and in losses what is lost without it.
package guard
