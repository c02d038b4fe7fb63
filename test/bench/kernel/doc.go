// Command kernel measures what iptables mode costs in the kernel beside a host with one DNAT rule,
// and beside lists of rules such as kube-proxy writes: the first packet of a connection, and the
// work for a change. With -ipvs it measures ipvs mode beside all of these, and beside ipvsadm and
// ip.
//
// Every layout of rules that is compared lives in a box: a process in network, mount and process
// namespaces of its own, which loads its rules there and obeys the benchmark over a pipe. All is in
// place at the same time, so that rounds can be interleaved.
//
//	benchmark --AF_PACKET, sendmmsg--> c3 ==veth== in [ box: the rules, then a chain that drops ] out ==veth== far
//
// The benchmark sends TCP SYNs, each from a new address and port, so each is the first packet of a
// connection. On a veth the receiving side runs inside the sender's system call: the wall time of
// one pinned thread is the CPU time of the whole path. The box drops in the last hook before
// conntrack would confirm the connection, behind NAT's part of POSTROUTING: no table grows, nothing
// answers, and all rules that a first packet crosses are in what is measured. Before anything is
// timed, the drop is taken away for some packets, all of which have to arrive at the far end with
// an endpoint's address.
//
// A box ends with the process that started it, however that ends, and nothing of it is seen
// outside.
//
// IPVS keeps an entry for each connection whose first packet it has seen, also if that is dropped
// behind it: its table is large enough not to matter. Messages to IPVS are counted on a device of
// type nlmon in the box, so that what is counted is what the kernel gets. Where this machine's
// kernel has no IPVS, all of -ipvs runs in a guest (vipd/test/guest/vm).
//
//	go run ./test/bench/kernel [-quick] [-ipvs [-full]] [-only PATTERN] [-json FILE]
package main
