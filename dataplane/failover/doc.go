// Package failover sets up a host's kernel for VIPs that only one host owns at a time (hold =
// "one"). Package balancer/failover chooses the owner.
//
//	client --frame--> Gate (netdev ingress) --> address on a real device, DNAT --> endpoint
//	client <--frame-- Gate (netdev egress)  <--
//	                    ^ open while an element of a kernel set lives: for Timeout after the last Refresh
//
// [Gate] drops frames to and from VIPs, including ARP and NDP, unless it is open. It stays open
// only while Refresh is called in time. If the process is stopped, killed or late, the kernel's
// timer closes the gate and so silences the VIPs, regardless of other addresses and rules. A
// refresh only extends the timeout of an open gate, and does not open a closed gate. So the caller
// must first call Install, Open (while no VIP is bound), and Refresh, and only then Addresses.Add
// and Announcer.Announce. Addresses.Remove must return before another host answers for the VIPs.
//
// [Addresses] adds VIPs to devices. [Layout] finds the device whose network contains a VIP.
// [Announcer] announces the VIPs to the neighbors, immediately and repeatedly. [Rivals] and [Probe]
// find the MACs of other hosts that answer for a VIP. [Kernel] combines these types. [Adverts]
// sends and receives VRRP packets, for hosts that choose the owner without etcd.
//
// [Trial] reports whether this kernel supports the gate. The package needs CAP_NET_ADMIN and
// CAP_NET_RAW, and Linux 5.16.
package failover
