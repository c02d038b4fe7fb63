// Package failover changes the kernel of a host for VIPs that have one owner among several hosts
// (hold = "one"). The owner is chosen elsewhere (balancer/failover).
//
//	client --frame--> Gate (netdev ingress) --> address on a real device, DNAT --> endpoint
//	client <--frame-- Gate (netdev egress)  <--
//	                    ^ open while an element of a kernel set lives: for Timeout after the last Refresh
//
// [Gate] drops frames to and from VIPs, including ARP and NDP, unless it is open. It stays open
// only while Refresh is called. If the process is stopped, killed or late, the kernel's clock
// silences the VIPs, whatever addresses and rules exist. A refresh only prolongs: a refresh that is
// later than the timeout opens nothing. So the order is: Install, Open with no VIP bound, Refresh,
// Addresses.Add, and Announcer.Announce. Addresses.Remove precedes the answers of any other host.
//
// [Addresses] adds VIPs to the device whose network contains them, and [Layout] finds that device.
// [Announcer] announces them to the neighbors, immediately and repeatedly. [Rivals] and [Probe]
// find the MACs of other hosts that answer for a VIP. [Kernel] combines all of these. [Adverts]
// sends and receives the packets of VRRP, for hosts that choose the owner without etcd.
//
// [Trial] reports whether this kernel supports the gate. The package needs CAP_NET_ADMIN and
// CAP_NET_RAW, and Linux 5.16.
package failover
