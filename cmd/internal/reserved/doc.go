// Package reserved finds the addresses and ports that a node needs, so services from etcd may not
// claim them. These are the addresses by which the node reaches etcd, the ports of etcd, and local
// ports on which programs listen. The addresses are those of etcd, of the gateways to etcd, of the
// default gateways and, if etcd has host names, of the name servers.
//
//	[etcd] endpoints -> addresses -> gateways \
//	                 -> ports                  > balancer.Env.Reserved
//	/proc/net        -> ports in use          /
//
// A VIP is local to every node that holds it, and a node port receives traffic to all of a node's
// own addresses. If a service from etcd claimed an address on the path to etcd, nodes could no
// longer reach etcd, and no correction could reach them. Loopback addresses are not reserved,
// because services use a node's loopback addresses only if the node permits that.
//
// The package does not decide which claims are refused (package balancer does), nor how etcd is
// reached (package store/etcd does).
package reserved
