// Package vrrp decides which of a few hosts holds a group of VIPs. It implements the Virtual Router
// Redundancy Protocol, versions 3 (RFC 9568) and 2.
//
// It has no I/O and no clock. [Node] is one host: its methods receive an event and its time, and
// return the actions to perform, in order. [Advert] is the protocol's message, which keepalived and
// hardware routers also use.
//
// An owner sends adverts. A backup takes over after its down time without an advert. No router
// confirms the arrival of adverts, so two hosts that can't reach each other both own the VIPs. If a
// process hangs, or is killed or stopped, its host soon stops answering: the gate, a timer in the
// kernel, silences its VIPs before the fastest backup takes over (timing.go). Each group has a
// router:
//
//	Init --> Backup --- silence, or a lower owner ---> Claiming --- 20 ms, open gate ---> Active
//	           ^                                          |                                 |
//	           +------- a higher router, a lapse, a failed advert, a move, not ready -------+
//
// A Claiming router has sent its first advert, so a lower owner removes the VIPs before this host
// binds them. An owner that releases its VIPs removes them before it sends priority 0. After a
// lapse of the gate, an owner sends nothing, and drops packets that arrived before the lapse. Its
// answer to such a packet would make the new owner step down, and then no host would answer.
//
//	node, router           events; states of one group
//	heard, peers           adverts of other routers, and which are dropped
//	rival                  owners that ignore this host's adverts: it yields, because only it can end the double ownership
//	fitness, witness       whether this host can serve the VIPs, and whether it is connected
//	packet, checksum       the messages
//
// The package deviates from RFC 9568 in two points. VIPs have the host's own MAC, as with
// keepalived. The priority of the address owner (255) is accepted in adverts but never used.
package vrrp
