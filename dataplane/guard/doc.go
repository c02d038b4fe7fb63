// Package guard maintains the netfilter state that all modes share. It restricts VIPs to the ports
// of services, enforces source ranges, refuses clients, and marks connections. It also masquerades
// connections whose replies would otherwise bypass this node. The host passes the desired and the
// applied frontends. It calls Prepare before a dataplane applies frontends, and Finish afterwards.
//
// The guard is an nf_tables table for each family, vipd-guard. Each change is one transaction. The
// table has a constant, small number of rules over sets (see setDefs). Most chains have the type
// nat, so only the first packet of a connection traverses them. A packet passes:
//
//	packet-marks         ours, if another program has copied vipd's bits to the packet's mark (at -150):
//	                     the bits are cleared, so rules of policy routing match
//	prerouting           to an owned address that this host reaches by the packet's interface: dropped,
//	                     because this host does not have the address
//	prerouting, output   TCP without SYN to a served port -> reset, in modes where only conntrack knows
//	                     connections
//	                     special    -> restricted and not allowed, unless from the host itself: dropped;
//	                                   silent: dropped; marked as ours; rejected: refused;
//	                                   always and never: marked accordingly
//	                     frontends  -> marked as ours
//	output               TCP, rejected -> refused
//	                     then the mode's rules: DNAT, REDIRECT, virtual servers
//	input                established or related -> accepted; rejected -> refused; to a held address: ICMP
//	                     and served are accepted, pending is dropped, the rest is refused. If the mode
//	                     translates all connections, served is dropped: conntrack knew these connections
//	                     before the frontend, and the mode makes conntrack forget them
//	restarts             a SYN or INIT of a known connection to an endpoint in dead -> its client is added
//	                     to restarts, and the packet is dropped; see restarts.go
//	segment-size         ours, the first segment of either side: its MSS is clamped to the MTU of the
//	                     path if links or routes have different MTUs, and to the value in clamps for
//	                     the place to which the connection was opened, also in input
//	source               ours, not never: if the connection is from a program of this host, if onearm has
//	                     its pair of incoming and outgoing interfaces, or if marked always -> masqueraded
//
// Endpoints of frontends with forward = "dr" or "tunnel" reply directly to the client, without this
// node. conntrack would treat such a connection as new until it times out, its later packets as
// invalid, and an idle connection as new again. So separate chains exclude these connections from
// tracking, and restrict the packets that open them.
//
// No nf_tables table can accept a packet that an iptables filter drops, such as Docker's or ufw's.
// So an acceptor maintains three chains in these filters, if they exist. Administrators must add
// rules to other firewalls' tables themselves.
//
// Entries of held, and of the sets that classify packets, are added before the frontend is applied,
// and remain until no applied frontend needs them. Entries that open or refuse a port require a
// frontend that is both desired and applied. Addresses are added after the guard is complete, and
// removed before the guard, so the host's own ports are never reachable on a VIP. While nf_tables
// is busy, vipd adds no addresses.
//
// A trial proves that the kernel accepts the guard (see [Try]). The guard needs reject in
// prerouting (Linux 5.9), networks in concatenated keys (5.6), and the modules nft_ct, nft_nat,
// nft_masq and nft_reject. A separate trial proves that the kernel accepts limits, which need
// nft_limit and nft_connlimit. Kernel modes require the guard. In userspace mode a missing guard is
// a problem, but most frontends do not wait for it. Without the guard, the addresses answer on
// every port, and the mode itself enforces source ranges. Frontends with source ranges on existing
// addresses, and frontends on owned addresses, wait for the guard (see Ready).
//
// The ruleset's generation number and the rules' handles reveal changes to the table. If another
// program has changed the table, its sets are read again. The acceptor compares fingerprints of its
// chains.
//
// Redirects is a table that redirects connections to ports of this host, for userspace mode.
//
// Earlier versions kept the guard in iptables and ipsets on some hosts (see removeFormer).
//
// To add a feature that all modes share, add a set to setDefs and its rules to layout. If clients
// are affected while the guard is missing, also describe this in losses.
package guard
