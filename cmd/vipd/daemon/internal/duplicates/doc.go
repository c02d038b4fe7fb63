// Package duplicates finds other hosts that have the address of a VIP. It probes this host's links
// before this host holds a VIP for the first time.
//
//	model.State -> new VIPs, the links that may lead to them -> ARP and NDP probes -> problems of the node
//
// A VIP for which another host answers is still served, because that host may be about to release
// it. Its link is probed again twice a minute. VIPs with one owner are excluded, because vipd owner
// constantly watches for rivals.
//
// The probes do not delay other work. They run on all links at the same time, for less than a
// second.
package duplicates
