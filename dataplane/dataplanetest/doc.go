// Package dataplanetest is the conformance suite of dataplanes: real services, compiled by balancer
// and carried out by an Engine, met by real packets from clients on the host, behind it and among
// its own servers.
//
//	func TestMain(m *testing.M) { lab.Main(m) }
//
//	func TestConformance(t *testing.T) {
//		dataplanetest.Run(t, dataplanetest.Subject{Name: "mine", New: newMine})
//	}
//
// What modes do differently by contract follows from their Capabilities: where a dataplane keeps
// the client's address, servers must see that wherever snat allows; where it ends connections
// itself, they see the host's. Everything else has one answer here for all. A dataplane that can't
// pass a case names it in Subject.Skip, with the reason.
//
// Most cases come one after the other in one layout, on one host, each with a dataplane of its own.
// Bounds of time are scaled by VIPD_SLOWNESS, loads by VIPD_COST, see test/wait.
//
// A Subject with a Host that keeps the guard is also damaged in the ways of Damages, killed within
// streams of changes, and met by firewalls and rules of others, which have to stay byte for byte
// what they were: see snapshot. When a host is given back nothing of ours may be left in netfilter.
// Where the kernel has IPVS, virtual servers of others have to stay as well.
//
// The layouts, each with IPv4 and IPv6, TCP and UDP, and with clients on the host, forwarded by it,
// at node ports, and among the servers themselves:
//
//	routed         client --- host --- s1, s2, s3, a link each; replies come back through the host
//	one-arm        client, host, s1, s2, s3 on one switch; replies would go straight to the client
//	astray         client --- host --- switch with s1, s2, s3, whose default gateway is another router; snat = always
//	shared-vip     routed, and the servers hold the VIP on their own loopbacks; they have no route to the host's addresses
//	               on other links, and filter by reverse path
//	narrow         client --- host --- router --- s1, s2, s3; the link to the router takes 1400 bytes, and no message says so
//	own-address    routed, and the VIP is the host's own address
//	dr, tunnel     client --- host --- switch with s1, s2, s3, which hold the VIP and answer through a router of their own
package dataplanetest
