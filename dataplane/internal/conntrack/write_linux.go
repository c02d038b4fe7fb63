package conntrack

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nlsock"
)

// These are message types (enum cntl_msg_types,
// include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	messageNew    = unix.NFNL_SUBSYS_CTNETLINK << 8
	messageGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	messageDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	messageStats  = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5
)

// These are the parts of a tuple by which the kernel can search (CTA_FILTER_F_...,
// net/netfilter/nf_internals.h).
const (
	byDestination = 1 << 1
	byProtocol    = 1 << 3
	byPort        = 1 << 5
)

// writer writes a sequence of messages.
type writer struct{ nlsock.Writer }

func (w *writer) begin(kind, flags uint16, seq uint32, family byte) {
	w.Begin(kind, flags, seq, family, unix.NFNETLINK_V0, 0, 0)
}

func (w *writer) address(kind4, kind6 uint16, a netip.Addr) {
	if a.Is4() {
		kind6 = kind4
	}
	w.Addr(kind6, a)
}

// tuple writes a tuple. A zone of 0 is omitted.
func (w *writer) tuple(kind uint16, proto byte, t Tuple, zone uint16) {
	w.Nest(kind)
	w.Nest(ctaTupleIP)
	w.address(ctaIPv4Src, ctaIPv6Src, t.Src.Addr())
	w.address(ctaIPv4Dst, ctaIPv6Dst, t.Dst.Addr())
	w.Unnest()
	w.Nest(ctaTupleProto)
	w.Bytes(ctaProtoNum, proto)
	w.Wire16(ctaProtoSrcPort, t.Src.Port())
	w.Wire16(ctaProtoDstPort, t.Dst.Port())
	w.Unnest()
	if zone != 0 {
		w.Wire16(ctaTupleZone, zone)
	}
	w.Unnest()
}

// delete requests the deletion of exactly the flow f.
func (w *writer) delete(f *Flow, seq uint32) {
	w.begin(messageDelete, 0, seq, family(inet.Of(f.Orig.Src.Addr())))
	if f.half {
		w.tuple(ctaTupleOrig, f.Proto.Number(), f.Orig, f.zone)
	} else {
		w.tuple(ctaTupleOrig, f.Proto.Number(), f.Orig, 0)
		if f.zone != 0 {
			w.Wire16(ctaZone, f.zone)
		}
	}
	if f.id != 0 {
		w.Wire32(ctaID, f.id)
	}
	w.End()
}

// selection holds the criteria of a search by the kernel.
type selection struct {
	family byte // unix.AF_...
	flags  uint32
	proto  byte
	dst    netip.Addr
	port   uint16
	// unreplied selects flows by their status. Older kernels ignore it.
	unreplied bool
}

// selection returns the criteria of the filter. It omits criteria that kernels do not support or
// handle incorrectly: protocols without a family, ports without a protocol, and IPv6 addresses.
func (f Filter) selection() selection {
	s := selection{family: family(f.Family), unreplied: f.Unreplied}
	if f.Dst.IsValid() {
		s.family = family(inet.Of(f.Dst))
	}
	if s.family == unix.AF_UNSPEC {
		return s
	}
	if f.Dst.Is4() {
		s.flags |= byDestination
		s.dst = f.Dst
	}
	if f.Proto != "" {
		s.flags |= byProtocol
		s.proto = f.Proto.Number()
		if f.Port != 0 {
			s.flags |= byPort
			s.port = f.Port
		}
	}
	return s
}

func family(f inet.Family) byte {
	switch f {
	case inet.IPv4:
		return unix.AF_INET
	case inet.IPv6:
		return unix.AF_INET6
	}
	return unix.AF_UNSPEC
}

func (w *writer) list(s selection, seq uint32) {
	w.begin(messageGet, unix.NLM_F_DUMP, seq, s.family)
	if s.flags != 0 {
		w.Nest(ctaTupleOrig)
		if s.flags&byDestination != 0 {
			w.Nest(ctaTupleIP)
			w.address(ctaIPv4Dst, ctaIPv6Dst, s.dst)
			w.Unnest()
		}
		if s.flags&byProtocol != 0 {
			w.Nest(ctaTupleProto)
			w.Bytes(ctaProtoNum, s.proto)
			w.Wire16(ctaProtoDstPort, s.port)
			w.Unnest()
		}
		w.Unnest()
		w.Nest(ctaFilter)
		// These two attributes are in the machine's byte order.
		w.Native32(ctaFilterOrigFlags, s.flags)
		w.Bytes(ctaFilterReplyFlags, 0, 0, 0, 0)
		w.Unnest()
	}
	if s.unreplied {
		w.Wire32(ctaStatus, 0)
		w.Wire32(ctaStatusMask, uint32(SeenReply))
	}
	w.End()
}
