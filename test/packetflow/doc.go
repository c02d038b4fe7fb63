// Package packetflow holds every mode to the tables in flows.md: what clients get from where they
// are, under each policy. The tables are written for people. Real packets in a network of
// namespaces with the same addresses are held to them: in userspace and iptables mode everywhere
// (once through a node that drops what nobody asks for), in ipvs mode where the kernel has IPVS,
// which the guest's has. In iptables mode the rules in the kernel have to be those that vipctl plan
// prints.
//
// It needs no more of a mode than its line in modes, and is a package of its own because no mode
// owns the tables.
package packetflow
