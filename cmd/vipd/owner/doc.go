// Package owner is "vipd owner": the process that holds VIPs with hold = "one" while they are this host's. It connects the protocol
// (balancer/failover) to the kernel (dataplane/failover), the heartbeats and etcd.
//
// The process is small and has real-time priority, apart from vipd, so vipd never delays it. Each second, vipd reports through a socket
// which VIPs exist and which of them it could serve.
//
//	vipd --- owner.sock ---> daemon ---> core loop ---> failover.Node ---> actions: heartbeats, transactions in etcd
//	                                       ^ |
//	                 heartbeats, etcd -----+ +--> worker (gate, addresses, in order)
//	                                       +----> deadline ---> refresher (a thread) ---> gate
//
// Only the loop calls the Node. The worker carries out the slow actions in the kernel, so heartbeats are answered in time. The
// refresher reads the deadline and keeps the gate open.
package owner
