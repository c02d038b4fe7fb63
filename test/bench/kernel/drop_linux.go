package main

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The chain that drops packets is an nftables chain, for every measured backend. Only nftables
// allows a chain after NAT in POSTROUTING, and NAT's own tables don't allow drops.
const (
	dropTable = "bench-drop"
	// dropPriority is after source NAT (100, NF_IP_PRI_NAT_SRC of linux/netfilter_ipv4.h), and
	// before the confirmation of new connections.
	dropPriority = 300
	nfDrop       = 0 // NF_DROP of linux/netfilter.h
)

// shut makes the namespace drop outgoing packets.
func shut() error {
	return dropAt(unix.NFPROTO_IPV4, unix.NF_INET_POST_ROUTING, dropPriority)
}

// dropArriving drops all packets that arrive on a link, before rules of others and routing.
func dropArriving(link string) error {
	const firstPriority = 0x80000000 // the smallest int32
	return dropAt(unix.NFPROTO_NETDEV, unix.NF_NETDEV_INGRESS, firstPriority, text(unix.NFTA_HOOK_DEV, link))
}

// dropAt creates a chain that drops all packets of a hook.
func dropAt(family byte, point, priority uint32, device ...*nl.RtAttr) error {
	table := nfMessage(family, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, text(unix.NFTA_TABLE_NAME, dropTable))
	hook := nl.NewRtAttr(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, nil)
	hook.AddRtAttr(unix.NFTA_HOOK_HOOKNUM, bigEndian(point))
	hook.AddRtAttr(unix.NFTA_HOOK_PRIORITY, bigEndian(priority))
	for _, a := range device {
		hook.AddChild(a)
	}
	chain := nfMessage(family, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_ACK, text(unix.NFTA_CHAIN_TABLE, dropTable), text(unix.NFTA_CHAIN_NAME, "all"),
		hook, nl.NewRtAttr(unix.NFTA_CHAIN_POLICY, bigEndian(nfDrop)), text(unix.NFTA_CHAIN_TYPE, "filter"))
	if err := nfTransaction(table, chain); err != nil {
		return fmt.Errorf("making the chain that drops: %w", err)
	}
	return nil
}

func open() error {
	if err := nfTransaction(nfMessage(unix.NFPROTO_IPV4, unix.NFT_MSG_DELTABLE, unix.NLM_F_ACK, text(unix.NFTA_TABLE_NAME, dropTable))); err != nil {
		return fmt.Errorf("removing the chain that drops: %w", err)
	}
	return nil
}

func text(attr int, s string) *nl.RtAttr { return nl.NewRtAttr(attr, nl.ZeroTerminated(s)) }

func bigEndian(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// nfMessage encodes one message of an nftables transaction.
func nfMessage(family byte, kind, flags int, attributes ...*nl.RtAttr) []byte {
	return message(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, family, 0, attributes...)
}

// message encodes a netlink message: struct nlmsghdr, struct nfgenmsg, attributes.
func message(kind, flags int, family byte, resource uint16, attributes ...*nl.RtAttr) []byte {
	body := binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
	for _, a := range attributes {
		body = append(body, a.Serialize()...)
	}
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	m = binary.NativeEndian.AppendUint16(m, uint16(kind))
	m = binary.NativeEndian.AppendUint16(m, uint16(unix.NLM_F_REQUEST|flags))
	m = append(m, make([]byte, 8)...) // no sequence number or port ID is needed, because there is only one answer
	return append(m, body...)
}

// nfTransaction executes all messages or none. The last message requests an acknowledgement. If an
// earlier message fails, the kernel reports its error first.
func nfTransaction(messages ...[]byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	batch := message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	for _, m := range messages {
		batch = append(batch, m...)
	}
	batch = append(batch, message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)...)
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 1<<16)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("an answer of %d bytes that is none", n)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
