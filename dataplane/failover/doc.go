// Package failover is what a host does in its kernel about VIPs that have one owner among several hosts (hold = "one"): who
// the owner is it leaves to others.
//
//	client --frame--> Gate (netdev ingress) --> address on a real device, DNAT --> endpoint
//	client <--frame-- Gate (netdev egress)  <--
//	                    ^ open while an element of a kernel set lives: for Timeout after the last Refresh
//
// Gate drops frames to and from VIPs, ARP and NDP among them, unless it is open. It stays open only while Refresh is called: a
// process that is stopped, killed or late goes silent by the kernel's clock, whatever addresses and rules stand. A refresh only
// prolongs: what was delayed for longer than the timeout opens nothing. So the order is: Install, Open with no VIP bound, Refresh,
// then Addresses.Add, then Announcer.Announce; and back: Addresses.Remove before anybody else may answer.
//
// Addresses puts VIPs on the device whose network contains them. Announcer tells the neighbours, at once and again. Rivals
// and Probe find other hosts that answer for a VIP, with their MAC.
//
// Trial says whether this kernel can do all this. The package needs CAP_NET_ADMIN and CAP_NET_RAW, and Linux 5.16.
package failover
