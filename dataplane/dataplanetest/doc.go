// Package dataplanetest is the conformance suite for dataplanes. It compiles real services, applies
// them with an Engine, and sends real packets from clients on the host, from clients behind the
// host, and between its own servers.
//
//	func TestMain(m *testing.M) { lab.Main(m) }
//
//	func TestConformance(t *testing.T) {
//		dataplanetest.Run(t, dataplanetest.Subject{Name: "mine", New: newMine})
//	}
//
// The differences that are permitted between modes follow from their Capabilities. If a dataplane
// keeps the client's address, servers must see that address unless snat replaces it. If it
// terminates connections, they must see an address of the host. Everything else must be the same in
// all modes. If a dataplane can't pass a case, Subject.Skip must contain the case, with the reason.
//
// Most cases run one after another in one layout, on one host, each with its own dataplane.
// VIPD_SLOWNESS scales time limits, and VIPD_COST scales loads (see test/wait).
//
// If a Subject has a Host with the guard, the suite also damages it in the ways of Damages, and
// kills its process during streams of changes. Foreign firewalls and rules must stay unchanged,
// byte for byte (see snapshot). After a host is released, netfilter must contain nothing of vipd.
// If the kernel has IPVS, foreign virtual servers must also stay unchanged.
//
// These are the layouts. Each has IPv4 and IPv6, TCP and UDP, and clients on the host, behind the
// host, at node ports, and on the servers:
//
//	routed         client --- host --- s1, s2, s3, each on its own link; replies go back through the host
//	one-arm        client, host, s1, s2, s3 on one switch; replies would go directly to the client
//	astray         client --- host --- switch with s1, s2, s3, whose default gateway is another router; snat = always
//	shared-vip     routed, and the servers hold the VIP on their own loopbacks; they have no route to the host's addresses
//	               on other links, and filter by reverse path
//	narrow         client --- host --- router --- s1, s2, s3; the link to the router has an MTU of 1400, without ICMP messages
//	own-address    routed, and the VIP is the host's own address
//	dr, tunnel     client --- host --- switch with s1, s2, s3, which hold the VIP and answer through their own router
package dataplanetest
