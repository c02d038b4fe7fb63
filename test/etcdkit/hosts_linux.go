package etcdkit

import (
	"fmt"

	"vipd/test/lab"
)

// Hosts creates a network namespace for each of n members, and connects them and the host with a
// switch. The caller may connect other namespaces to the switch. Member i has the address
// 10.6.0.(1+i), and the host has 10.6.0.254.
func Hosts(l *lab.Lab, n int) (hosts []Host, network *lab.Bridge) {
	network = l.Bridge("etcd")
	network.Join(l.Host(), "10.6.0.254/24")
	for i := range n {
		ns, addr := l.Add(fmt.Sprintf("etcd%d", i)), fmt.Sprintf("10.6.0.%d", 1+i)
		network.Join(ns, addr+"/24")
		hosts = append(hosts, Host{Addr: addr, Do: ns.Do})
	}
	return hosts, network
}
