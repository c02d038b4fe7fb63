// Package duplicates asks the links of this host, when a VIP is about to be held for the first time, whether another host has its address.
//
//	model.State -> new VIPs, the links that may lead to them -> ARP and NDP probes -> problems of the node
//
// A VIP that another host answers for is served all the same: that host may be about to give it up. While one is known, its link is
// asked again twice a minute. VIPs that one of several hosts owns are left to vipd owner, which watches for rivals all the time.
//
// It delays nothing. The links are asked side by side, and each is given less than a second.
package duplicates
