package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// What filters of conntrack's entries are made of, and the library has no names for.
const (
	nested          = unix.NLA_F_NESTED
	filterAttr      = 25 // CTA_FILTER
	filterOrigAttr  = 1  // CTA_FILTER_ORIG_FLAGS
	filterReplyAttr = 2  // CTA_FILTER_REPLY_FLAGS
	byDestination   = 1 << 1
	byProtocol      = 1 << 3
	byPort          = 1 << 5
)

// fewKeys are asked for one by one; for more, all UDP entries are looked at once.
const fewKeys = 4

// forgetFlows drops what conntrack knows of UDP flows to the keys: it decides only once per flow where that goes, so
// that a client that goes on sending would never meet a rule that is new, and go on meeting one that is not there any
// more. The kernel finds the entries, which costs a twentieth of listing all; they are compared here all the same, since
// some versions know no filters, and are deleted one by one.
func forgetFlows(family xtables.Family, keys map[balancer.Key]bool) error {
	if len(keys) == 0 {
		return nil
	}
	t := tracked{family: unix.AF_INET}
	if family == xtables.IPv6 {
		t.family = unix.AF_INET6
	}
	filters := []*trackedFilter{t.filter(nil)}
	if len(keys) <= fewKeys {
		filters = nil
		for k := range keys {
			filters = append(filters, t.filter(&k))
		}
	}
	for _, f := range filters {
		if err := t.forget(f, keys); err != nil {
			return fmt.Errorf("dropping conntrack's UDP flows to redirected addresses: %w", err)
		}
	}
	return nil
}

// tracked is conntrack's table of one family.
type tracked struct{ family int }

// request begins one.
func (t tracked) request(message, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|message, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(t.family), Version: nl.NFNETLINK_V0})
	return req
}

// trackedFilter is what the kernel is to look for.
type trackedFilter struct {
	tuple *nl.RtAttr
	flags uint32 // which parts of the tuple count
}

// filter finds the entries of k, or all of UDP. The kernel's filter by address is wrong for IPv6 on some versions: there
// it goes by the port only.
func (t tracked) filter(k *balancer.Key) *trackedFilter {
	f := &trackedFilter{nl.NewRtAttr(nested|nl.CTA_TUPLE_ORIG, nil), byProtocol}
	if k != nil && k.Addr.Is4() {
		f.tuple.AddRtAttr(nested|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_DST, k.Addr.AsSlice())
		f.flags |= byDestination
	}
	proto := f.tuple.AddRtAttr(nested|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_UDP})
	if k != nil {
		proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, k.Port))
		f.flags |= byPort
	}
	return f
}

// forget deletes the entries of keys among those that the filter finds.
func (t tracked) forget(filter *trackedFilter, keys map[balancer.Key]bool) error {
	entries, err := t.list(filter)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		entries, err = t.list(nil)
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		attrs, err := attrsOf(entry[min(nl.SizeofNfgenmsg, len(entry)):])
		if err != nil {
			return err
		}
		if k, ok := destination(attrs[nl.CTA_TUPLE_ORIG]); !ok || !keys[k] {
			continue
		}
		req := t.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		req.AddData(nl.NewRtAttr(nested|nl.CTA_TUPLE_ORIG, attrs[nl.CTA_TUPLE_ORIG]))
		if zone := attrs[nl.CTA_ZONE]; zone != nil {
			req.AddData(nl.NewRtAttr(nl.CTA_ZONE, zone))
		}
		if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// list returns the entries that a filter finds; nil: all.
func (t tracked) list(filter *trackedFilter) ([][]byte, error) {
	req := t.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	if filter != nil {
		req.AddData(filter.tuple)
		by := nl.NewRtAttr(nested|filterAttr, nil)
		by.AddRtAttr(filterOrigAttr, binary.NativeEndian.AppendUint32(nil, filter.flags))
		by.AddRtAttr(filterReplyAttr, binary.NativeEndian.AppendUint32(nil, 0))
		req.AddData(by)
	}
	return req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_NEW)
}

// attrsOf reads attributes by their type.
func attrsOf(b []byte) (map[int][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	attrs := make(map[int][]byte, len(list))
	for _, a := range list {
		attrs[int(a.Attr.Type&nl.NLA_TYPE_MASK)] = a.Value
	}
	return attrs, nil
}

// destination returns the key of a UDP tuple.
func destination(tuple []byte) (balancer.Key, bool) {
	parts, err := attrsOf(tuple)
	if err != nil {
		return balancer.Key{}, false
	}
	ip, ipErr := attrsOf(parts[nl.CTA_TUPLE_IP])
	proto, protoErr := attrsOf(parts[nl.CTA_TUPLE_PROTO])
	if ipErr != nil || protoErr != nil {
		return balancer.Key{}, false
	}
	to := ip[nl.CTA_IP_V4_DST]
	if to == nil {
		to = ip[nl.CTA_IP_V6_DST]
	}
	a, ok := netip.AddrFromSlice(to)
	number, port := proto[nl.CTA_PROTO_NUM], proto[nl.CTA_PROTO_DST_PORT]
	if !ok || len(number) != 1 || number[0] != unix.IPPROTO_UDP || len(port) != 2 {
		return balancer.Key{}, false
	}
	return balancer.Key{Addr: a, Port: binary.BigEndian.Uint16(port), Proto: balancer.UDP}, true
}
