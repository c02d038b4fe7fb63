// Package reserved finds the addresses and ports that a node itself needs. Services from etcd may
// not use them as VIPs and node ports. The ports are etcd's ports, and local ports on which
// programs listen. The addresses are etcd's addresses, the gateways to etcd, the default gateways
// and, if etcd has host names, the name servers.
//
//	[etcd] endpoints -> addresses -> gateways \
//	                 -> ports                  > balancer.Env.Reserved
//	/proc/net        -> ports in use          /
//
// A VIP is a local address on every node that holds it, and a node port receives traffic to all of
// a node's own addresses. So if a service used an address on the path to etcd as its VIP, nodes
// could no longer reach etcd, and would never see a correction. Loopback addresses are not
// reserved, because services use a node's loopback addresses only if the node permits that.
//
// The package does not decide which services are refused. Package balancer does.
package reserved
