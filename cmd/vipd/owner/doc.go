// Package owner is "vipd owner": the process that holds VIPs with hold = "one" while they are this host's.
//
// It is small and runs with real-time priority, apart from vipd, so that nothing that vipd does makes it late. vipd tells it
// each second, through a socket, which VIPs there are and which of them it could serve; to vipd their addresses come and go.
//
//	vipd --- owner.sock ---> loop ---> ownership.Node ---> actions: heartbeats, transactions in etcd, kernel
//	                          ^ |
//	    heartbeats, etcd -----+ +--> deadline ---> refresher (a thread of its own) ---> gate
//
// The loop alone calls the Node. The kernel's slow work (gate, addresses) is done in order by a goroutine of its own, so that
// heartbeats are answered meanwhile. The refresher reads the deadline and prolongs the gate.
package owner
