// Command kernel measures the kernel's cost of nftables and iptables mode, and compares it with the
// cost of a single DNAT rule and of rule lists like kube-proxy's. It measures the first and further
// packets of connections, and the work for a change. With -ipvs it compares ipvs mode with all of
// these, and with ipvsadm.
//
// Every layout of rules has a box: a process in its own network, mount and process namespaces,
// which loads its rules there and executes the benchmark's requests from a pipe. All boxes exist at
// the same time, so rounds can be interleaved.
//
//	benchmark --AF_PACKET, sendmmsg--> c3 ==veth== in [ box: the rules, then a chain that drops ] out ==veth== far
//
// The benchmark sends TCP SYNs, each from a new address and port, so each is the first packet of a
// connection. On a veth the receiving side runs inside the sender's system call, so the wall time
// of one pinned thread is the CPU time of the whole path. The box drops packets in the last hook
// before conntrack confirms the connection, after NAT in POSTROUTING. So no table grows, nothing
// answers, and the measurement includes all rules for a first packet. Before each measurement, the
// box forwards some packets instead of dropping them. All of them must arrive at the far end with
// an endpoint's address.
//
// The rows "opening" and "established" measure complete paths instead: their boxes forward all
// packets, and a chain at the far end drops them. "opening" sends SYNs, and the box forgets all
// connections before each turn. "established" sends datagrams of flows that the far end has
// answered.
//
// A box always ends with the process that started it, and nothing of it is visible outside.
//
// IPVS keeps an entry for each connection whose first packet it has processed, even if that packet
// is dropped later. Its table is large enough not to matter. If this machine's kernel has no IPVS,
// -ipvs runs completely in a guest (vipd/test/guest/vm).
//
//	go run ./test/bench/kernel [-quick] [-ipvs [-full]] [-only PATTERN]
package main
