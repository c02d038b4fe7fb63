// Package ipset changes the kernel's ipsets by netlink: many entries a message, so that what a change costs is what it
// changes. It knows the kinds of sets that vipd uses and their entries, keeps no state, and touches only sets that its
// caller names.
//
//	conn, err := ipset.Open()
//	defer conn.Close()
//	err = conn.Create("vipd-served4", ipset.HashIPPort, inet.IPv4)
//	err = conn.Add("vipd-served4", []ipset.Entry{{Addr: vip, Proto: ipset.TCP, Port: 80}})
//
// Adding what is there and deleting what is not are no errors: the kernel is told what shall be.
package ipset
