// Package duplicates finds hosts that have the address of a VIP. It probes the links of this host
// before it holds a VIP for the first time.
//
//	model.State -> new VIPs, the links that may lead to them -> ARP and NDP probes -> problems of the node
//
// A VIP for which another host answers is still served, because that host may be about to release
// it. Its link is probed again twice a minute. VIPs owned by one of several hosts are excluded,
// because vipd owner always watches for rivals.
//
// The probes delay nothing. They run on all links at once, for less than a second.
package duplicates
