// Package ipset makes and reads the kernel's ipsets by netlink, many entries a message. It knows the kind of sets that iptables
// mode uses, keeps no state, and touches only sets that its caller names.
//
//	conn, err := ipset.Open()
//	defer conn.Close()
//	err = conn.CreateTimed("vipd-sticky4-0", ipset.HashIPPortIP, inet.IPv4)
//	err = conn.Delete("vipd-sticky4-0", []ipset.Entry{{Addr: vip, Proto: ipset.TCP, Port: 80, Second: client}})
//
// Rules add the entries. Deleting an absent entry is not an error.
package ipset
