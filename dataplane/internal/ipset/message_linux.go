package ipset

import (
	"encoding/binary"
	"net/netip"
	"time"
	"vipd/dataplane/internal/inet"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listHeader requests a set without its elements (IPSET_FLAG_LIST_HEADER).
const listHeader = 1 << 2

// batch is the number of elements in a message. An attribute holds 64 KiB, and an IPv6 element
// needs about 100 bytes.
const batch = 500

// message starts a request about a set.
func (c *Conn) message(command int, set string) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	req.Sockets = c.sockets
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(set)))
	return req
}

func nested(kind int) *nl.RtAttr { return nl.NewRtAttr(kind|int(nl.NLA_F_NESTED), nil) }

func number(kind int, n uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind|int(nl.NLA_F_NET_BYTEORDER), binary.BigEndian.AppendUint32(nil, n))
}

// address adds an address as a nested attribute, as the kernel requires.
func address(to *nl.RtAttr, kind int, a netip.Addr) {
	inner := nl.IPSET_ATTR_IPADDR_IPV4
	if a.Is6() {
		inner = nl.IPSET_ATTR_IPADDR_IPV6
	}
	n := nested(kind)
	n.AddRtAttr(inner|int(nl.NLA_F_NET_BYTEORDER), a.AsSlice())
	to.AddChild(n)
}

func (e *Element) data() *nl.RtAttr {
	d := nested(nl.IPSET_ATTR_DATA)
	address(d, nl.IPSET_ATTR_IP, e.Addr)
	if e.Port != 0 {
		d.AddRtAttr(nl.IPSET_ATTR_PROTO, []byte{byte(e.Proto)})
		d.AddRtAttr(nl.IPSET_ATTR_PORT|int(nl.NLA_F_NET_BYTEORDER), binary.BigEndian.AppendUint16(nil, e.Port))
	}
	if e.Second.IsValid() {
		address(d, nl.IPSET_ATTR_IP2, e.Second)
	}
	return d
}

// attributes passes each attribute's kind, without flags, and its value to yield.
func attributes(b []byte, yield func(kind int, value []byte)) {
	for a := range nl.ParseAttributes(b) {
		yield(int(a.Type&nl.NLA_TYPE_MASK), a.Value)
	}
}

// listing is the kernel's listing of a set.
type listing struct {
	header  Header
	entries []Member
}

// read processes a message of a listing. The listing of a large set consists of several messages.
func (l *listing) read(message []byte) {
	if len(message) < 4 {
		return
	}
	attributes(message[4:], func(kind int, value []byte) {
		switch kind {
		case nl.IPSET_ATTR_TYPENAME:
			l.header.Kind = SetType(nl.BytesToString(value))
		case nl.IPSET_ATTR_FAMILY:
			l.header.Family = inet.IPv4
			if value[0] == unix.AF_INET6 {
				l.header.Family = inet.IPv6
			}
		case nl.IPSET_ATTR_DATA:
			attributes(value, l.readHeader)
		case nl.IPSET_ATTR_ADT:
			attributes(value, func(kind int, value []byte) {
				if kind == nl.IPSET_ATTR_DATA {
					l.entries = append(l.entries, l.readEntry(value))
				}
			})
		}
	})
}

func (l *listing) readHeader(kind int, value []byte) {
	if len(value) != 4 {
		return
	}
	switch kind {
	case nl.IPSET_ATTR_ELEMENTS:
		l.header.Elements = int(binary.BigEndian.Uint32(value))
	case nl.IPSET_ATTR_TIMEOUT:
		l.header.Timed = true
	}
}

func (l *listing) readEntry(data []byte) Member {
	var e Member
	attributes(data, func(kind int, value []byte) {
		switch kind {
		case nl.IPSET_ATTR_IP:
			e.Addr = readAddress(value)
		case nl.IPSET_ATTR_IP2:
			e.Second = readAddress(value)
		case nl.IPSET_ATTR_PROTO:
			e.Proto = Protocol(value[0])
		case nl.IPSET_ATTR_PORT:
			e.Port = binary.BigEndian.Uint16(value)
		case nl.IPSET_ATTR_TIMEOUT:
			e.Left = time.Duration(binary.BigEndian.Uint32(value)) * time.Second
		}
	})
	return e
}

func readAddress(value []byte) netip.Addr {
	var out netip.Addr
	attributes(value, func(_ int, value []byte) { out, _ = netip.AddrFromSlice(value) })
	return out
}
