package conntrack

import (
	"errors"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/nlsock"
)

// These are the attributes of a conntrack entry that this package reads or writes
// (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	ctaTupleOrig     = 1
	ctaTupleReply    = 2
	ctaStatus        = 3
	ctaProtoInfo     = 4
	ctaTimeout       = 7
	ctaCountersOrig  = 9
	ctaCountersReply = 10
	ctaID            = 12
	ctaZone          = 18
	ctaTimestamp     = 20
	ctaFilter        = 25
	ctaStatusMask    = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaProtoInfoTCP  = 1
	ctaProtoInfoSCTP = 3
	ctaState         = 1 // CTA_PROTOINFO_TCP_STATE and CTA_PROTOINFO_SCTP_STATE

	ctaCountersBytes  = 2
	ctaTimestampStart = 1
	ctaStatsEntries   = 1 // CTA_STATS_GLOBAL_ENTRIES

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
)

// headerSize is the size of struct nfgenmsg, which follows the netlink header.
const headerSize = 4

// attributes reads a sequence of attributes.
type attributes struct{ nlsock.Attributes }

func (a *attributes) number(size int) uint64 {
	if len(a.Value) != size {
		a.Err = nlsock.ErrMalformed
		return 0
	}
	var n uint64
	for _, b := range a.Value {
		n = n<<8 | uint64(b)
	}
	return n
}

// nested returns the nested attribute of this kind as a number, or 0 if it is missing.
func (a *attributes) nested(kind uint16, size int) (n uint64) {
	for in := (attributes{nlsock.In(a.Value)}); ; {
		if !in.Next() {
			a.Err = errors.Join(a.Err, in.Err)
			return n
		}
		if in.Kind == kind {
			n = in.number(size)
		}
	}
}

// read decodes an entry from a message without the netlink header. It returns false if the entry
// has an unsupported protocol.
func (f *Flow) read(message []byte) (bool, error) {
	if len(message) < headerSize {
		return false, nlsock.ErrMalformed
	}
	*f = Flow{}
	info := attributes{}
	a := attributes{nlsock.In(message[headerSize:])}
	for a.Next() {
		switch a.Kind {
		case ctaTupleOrig:
			f.Proto, f.zone = f.Orig.read(&a)
			f.half = f.zone != 0
			if f.Proto == "" {
				return false, a.Err
			}
		case ctaTupleReply:
			f.Reply.read(&a)
		case ctaStatus:
			f.Status = Status(a.number(4))
		case ctaProtoInfo:
			info = attributes{nlsock.In(a.Value)}
		case ctaTimeout:
			f.Left = time.Duration(a.number(4)) * time.Second
		case ctaCountersOrig:
			f.In = a.nested(ctaCountersBytes, 8)
		case ctaCountersReply:
			f.Out = a.nested(ctaCountersBytes, 8)
		case ctaID:
			f.id = uint32(a.number(4))
		case ctaZone:
			f.zone, f.half = uint16(a.number(2)), false
		case ctaTimestamp:
			if ns := a.nested(ctaTimestampStart, 8); ns != 0 {
				f.Start = time.Unix(0, int64(ns))
			}
		}
	}
	if a.Err != nil || f.Proto == "" || !f.Reply.Src.IsValid() || f.Reply.Src.Addr().Is4() != f.Orig.Src.Addr().Is4() {
		return false, nlsock.ErrMalformed
	}
	f.State = udpState(f.Status)
	if f.Proto != balancer.UDP {
		f.State = f.readState(&info)
	}
	if info.Err != nil {
		return false, nlsock.ErrMalformed
	}
	return true, nil
}

func (f *Flow) readState(info *attributes) (state string) {
	if f.Status.Has(Offloaded) && f.Proto == balancer.TCP {
		state = "established" // the kernel offloads no other TCP flow
	}
	for info.Next() {
		switch {
		case info.Kind == ctaProtoInfoTCP && f.Proto == balancer.TCP:
			state = tcpState(byte(info.nested(ctaState, 1)))
		case info.Kind == ctaProtoInfoSCTP && f.Proto == balancer.SCTP:
			state = sctpState(byte(info.nested(ctaState, 1)))
		}
	}
	return state
}

// read decodes the value of a. If the value is malformed, read sets a's error. If the protocol is
// unsupported, proto is "".
func (t *Tuple) read(a *attributes) (proto balancer.Protocol, zone uint16) {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	var err error
	in := attributes{nlsock.In(a.Value)}
	for in.Next() {
		switch in.Kind {
		case ctaTupleIP:
			src, dst, err = readAddresses(in.Value)
		case ctaTupleProto:
			proto, srcPort, dstPort, err = readPorts(in.Value)
		case ctaTupleZone:
			zone = uint16(in.number(2))
		}
		if err != nil {
			in.Err = err
		}
	}
	if in.Err == nil && (!src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4()) {
		in.Err = nlsock.ErrMalformed
	}
	if in.Err != nil {
		a.Err = in.Err
		return "", 0
	}
	t.Src, t.Dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return proto, zone
}

func readAddresses(b []byte) (src, dst netip.Addr, err error) {
	a := attributes{nlsock.In(b)}
	for a.Next() {
		switch a.Kind {
		case ctaIPv4Src, ctaIPv6Src:
			src = a.address(a.Kind == ctaIPv4Src)
		case ctaIPv4Dst, ctaIPv6Dst:
			dst = a.address(a.Kind == ctaIPv4Dst)
		}
	}
	return src, dst, a.Err
}

func (a *attributes) address(is4 bool) netip.Addr {
	addr, ok := netip.AddrFromSlice(a.Value)
	if !ok || addr.Is4() != is4 {
		a.Err = nlsock.ErrMalformed
	}
	return addr
}

func readPorts(b []byte) (proto balancer.Protocol, src, dst uint16, err error) {
	a := attributes{nlsock.In(b)}
	for a.Next() {
		switch a.Kind {
		case ctaProtoNum:
			proto = balancer.ProtocolOf(byte(a.number(1)))
		case ctaProtoSrcPort:
			src = uint16(a.number(2))
		case ctaProtoDstPort:
			dst = uint16(a.number(2))
		}
	}
	return proto, src, dst, a.Err
}
