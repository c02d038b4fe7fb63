// Package reserved knows what a node can't do without, so that services from etcd may not claim it:
// the addresses by which it reaches etcd (those of etcd itself, the gateways on the way there and
// to everywhere else, and, where etcd is named by host names, the name servers), the ports of etcd,
// and the ports of its own addresses on which programs listen.
//
//	[etcd] endpoints -> addresses -> gateways \
//	                 -> ports                  > balancer.Env.Reserved
//	/proc/net        -> ports in use          /
//
// A VIP is local to every node that holds it, and a node port takes what comes to all own addresses
// of every node. Were a service from etcd to claim what leads to etcd, no node would hear from etcd
// again, and the correction would reach none. What loopback addresses lead to is not followed:
// services take these from a node only where it allows that.
//
// It does not decide what is refused (package balancer does), nor how etcd is reached (package
// store/etcd does).
package reserved
