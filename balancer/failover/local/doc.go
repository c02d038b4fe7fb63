// Package local has the types shared by a protocol for VIPs and the process that holds VIPs on this
// host. They are the host's clock times, actions for its kernel, reasons for a closed gate, and
// events for operators. The protocols are etcd's (balancer/failover) and VRRP
// (balancer/failover/vrrp). The package has no I/O and no clock.
package local
