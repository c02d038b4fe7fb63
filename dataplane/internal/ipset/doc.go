// Package ipset changes and reads the kernel's ipsets over netlink, with many elements in each
// message. It supports only the set type that iptables mode uses. It keeps no state, and changes
// only sets that the caller names.
//
//	conn, err := ipset.Open()
//	defer conn.Close()
//	err = conn.CreateTimed("vipd-sticky4-0", ipset.HashIPPortIP, inet.IPv4)
//	err = conn.Delete("vipd-sticky4-0", []ipset.Element{{Addr: vip, Proto: ipset.TCP, Port: 80, Second: client}})
//
// Rules add elements to a set. Deleting a missing element is not an error.
package ipset
