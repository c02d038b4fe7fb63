// Package reserved knows the addresses by which a node reaches etcd: those of etcd itself, the gateways on the way there and
// to everywhere else, and, where etcd is named by host names, the name servers.
//
//	[etcd] endpoints -> addresses -> gateways -> balancer.Env.Reserved
//
// A VIP is local to every node that holds it. Were a service from etcd to claim one of these, all nodes would hold it at once,
// none would hear from etcd again, and the correction would reach nobody. What loopback addresses lead to is not followed:
// nobody takes these from a node.
//
// It does not decide what is refused (package balancer does), nor how etcd is reached (package store/etcd does).
package reserved
