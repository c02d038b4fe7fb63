// Package owner implements "vipd owner", the process that holds VIPs with hold = "one" while they
// belong to this host. A decider chooses the VIPs that this host owns. The decider byEtcd connects
// the protocol of balancer/failover to heartbeats and etcd. The decider byVRRP connects
// balancer/failover/vrrp to adverts. All other code connects the decider to the kernel
// (dataplane/failover), and does not depend on a protocol.
//
// The process is small, separate from vipd, and has real-time priority, so vipd never delays it.
// Each second, vipd reports the existing VIPs through a socket, and whether it could serve each
// VIP.
//
//	vipd --- owner.sock ---> daemon ---> core loop ---> decider ---> its own actions: heartbeats and transactions in etcd, or adverts
//	                                       ^ |
//	                 heartbeats, etcd -----+ +--> worker (gate, addresses, in order)
//	                                       +----> deadline ---> refresher (a thread) ---> gate
//
// Only the loop calls the protocol. The worker performs the slow actions in the kernel, so the loop
// can answer heartbeats in time. The refresher reads the deadline and keeps the gate open.
package owner
