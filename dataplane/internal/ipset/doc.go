// Package ipset changes and reads the kernel's ipsets by netlink, with many elements in a message.
// It supports the type of sets that iptables mode uses, keeps no state, and only changes sets that
// its caller names.
//
//	conn, err := ipset.Open()
//	defer conn.Close()
//	err = conn.CreateTimed("vipd-sticky4-0", ipset.HashIPPortIP, inet.IPv4)
//	err = conn.Delete("vipd-sticky4-0", []ipset.Entry{{Addr: vip, Proto: ipset.TCP, Port: 80, Second: client}})
//
// Rules add the elements. Deleting a missing element is not an error.
package ipset
