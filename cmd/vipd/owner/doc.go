// Package owner is "vipd owner": the process that holds VIPs with hold = "one" while they belong to
// this host. A decider chooses the VIPs: byEtcd connects the protocol of balancer/failover to
// heartbeats and etcd, and byVRRP connects balancer/failover/vrrp to adverts. The rest connects the
// decider to the kernel (dataplane/failover), and knows no protocol.
//
// The process is small, separate from vipd, and has real-time priority, so vipd never delays it.
// Each second, vipd reports the existing VIPs through a socket, and which of them it could serve.
//
//	vipd --- owner.sock ---> daemon ---> core loop ---> decider ---> its own actions: heartbeats and transactions in etcd, or adverts
//	                                       ^ |
//	                 heartbeats, etcd -----+ +--> worker (gate, addresses, in order)
//	                                       +----> deadline ---> refresher (a thread) ---> gate
//
// Only the loop calls the protocol. The worker performs the slow actions in the kernel, so
// heartbeats are answered in time. The refresher reads the deadline and keeps the gate open.
package owner
