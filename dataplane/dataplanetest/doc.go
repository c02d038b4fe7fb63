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
// Modes may differ only as their Capabilities permit. If a dataplane keeps the client's address,
// servers must see that address, unless snat replaces it. If a dataplane terminates connections,
// servers must see an address of the host. In all other respects, the modes must behave
// identically. If a dataplane can't pass a test case, Subject.Skip must contain the name of the
// case and the reason.
//
// Most test cases share a layout and a host. They run one after another, each with its own
// dataplane. VIPD_SLOWNESS scales time limits, and VIPD_COST scales loads (see test/wait).
//
// If a Subject has a Host with the guard, the suite also damages the subject's objects
// (Subject.Damage), and kills its process while it makes changes. Firewall rules of other programs
// must stay unchanged, byte for byte (see snapshot). After the host is released, netfilter must
// contain no objects of vipd. If the kernel has IPVS, foreign virtual servers must also stay
// unchanged.
//
// The suite uses the following layouts. In each, clients use IPv4 and IPv6, and TCP and UDP. The
// clients run on the host, behind the host and on the servers, and also connect to node ports:
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
