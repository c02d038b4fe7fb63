// Package reserved finds the addresses and ports that a node needs, so services from etcd may not
// claim them. These are the addresses by which it reaches etcd, the ports of etcd, and local ports
// on which programs listen. The addresses belong to etcd, to the gateways to etcd, to the default
// gateways, and to name servers if etcd has host names.
//
//	[etcd] endpoints -> addresses -> gateways \
//	                 -> ports                  > balancer.Env.Reserved
//	/proc/net        -> ports in use          /
//
// A VIP is local to every node that holds it, and a node port receives traffic to all own addresses
// of every node. If a service from etcd claimed an address on the way to etcd, nodes could no
// longer reach etcd, and the correction would reach none. Routes of loopback addresses are ignored,
// because services use a node's loopback addresses only if the node permits that.
//
// It does not decide what is refused (package balancer does), nor how etcd is reached (package
// store/etcd does).
package reserved
