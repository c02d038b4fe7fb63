package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The messages (enum cntl_msg_types, include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	messageNew    = unix.NFNL_SUBSYS_CTNETLINK << 8
	messageGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	messageDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
)

// What of a tuple the kernel is to search by (CTA_FILTER_F_..., net/netfilter/nf_internals.h).
const (
	byDestination = 1 << 1
	byProtocol    = 1 << 3
	byPort        = 1 << 5
)

// writer makes messages, one behind the other.
type writer struct{ b []byte }

// begin starts a message; what it returns goes to end.
func (w *writer) begin(kind, flags uint16, seq uint32, family byte) int {
	at := len(w.b)
	w.b = append(w.b, 0, 0, 0, 0) // the length, see end
	w.b = binary.NativeEndian.AppendUint16(w.b, kind)
	w.b = binary.NativeEndian.AppendUint16(w.b, flags|unix.NLM_F_REQUEST)
	w.b = binary.NativeEndian.AppendUint32(w.b, seq)
	w.b = append(w.b, 0, 0, 0, 0) // the port, which the kernel knows
	w.b = append(w.b, family, unix.NFNETLINK_V0, 0, 0)
	return at
}

func (w *writer) end(at int) {
	binary.NativeEndian.PutUint32(w.b[at:], uint32(len(w.b)-at))
}

// nest starts an attribute of attributes; what it returns goes to close.
func (w *writer) nest(kind uint16) int {
	at := len(w.b)
	w.b = append(w.b, 0, 0) // the length, see close
	w.b = binary.NativeEndian.AppendUint16(w.b, kind|unix.NLA_F_NESTED)
	return at
}

func (w *writer) close(at int) {
	binary.NativeEndian.PutUint16(w.b[at:], uint16(len(w.b)-at))
}

func (w *writer) attribute(kind uint16, value ...byte) {
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(unix.SizeofNlAttr+len(value)))
	w.b = binary.NativeEndian.AppendUint16(w.b, kind)
	w.b = append(w.b, value...)
	for len(w.b)%4 != 0 {
		w.b = append(w.b, 0)
	}
}

func (w *writer) number16(kind, n uint16) { w.attribute(kind, byte(n>>8), byte(n)) }

func (w *writer) number32(kind uint16, n uint32) {
	w.attribute(kind, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func (w *writer) address(kind4, kind6 uint16, a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		w.attribute(kind4, b[:]...)
		return
	}
	b := a.As16()
	w.attribute(kind6, b[:]...)
}

// tuple writes one; zone 0 is that of no tuple.
func (w *writer) tuple(kind uint16, proto byte, t Tuple, zone uint16) {
	all := w.nest(kind)
	ip := w.nest(ctaTupleIP)
	w.address(ctaIPv4Src, ctaIPv6Src, t.Src.Addr())
	w.address(ctaIPv4Dst, ctaIPv6Dst, t.Dst.Addr())
	w.close(ip)
	ports := w.nest(ctaTupleProto)
	w.attribute(ctaProtoNum, proto)
	w.number16(ctaProtoSrcPort, t.Src.Port())
	w.number16(ctaProtoDstPort, t.Dst.Port())
	w.close(ports)
	if zone != 0 {
		w.number16(ctaTupleZone, zone)
	}
	w.close(all)
}

// delete asks for the end of a flow, and of none but this.
func (w *writer) delete(f *Flow, flags uint16, seq uint32) {
	at := w.begin(messageDelete, flags, seq, family(familyOf(f.Orig.Src.Addr())))
	if f.half {
		w.tuple(ctaTupleOrig, f.Proto.Number(), f.Orig, f.zone)
	} else {
		w.tuple(ctaTupleOrig, f.Proto.Number(), f.Orig, 0)
		if f.zone != 0 {
			w.number16(ctaZone, f.zone)
		}
	}
	if f.id != 0 {
		w.number32(ctaID, f.id)
	}
	w.end(at)
}

// selection is what the kernel is asked to search by.
type selection struct {
	family byte // unix.AF_...
	flags  uint32
	proto  byte
	dst    netip.Addr
	port   uint16
	// unreplied: by the status, to which older kernels give no heed.
	unreplied bool
}

// selection leaves out what kernels can't search by, or do wrongly: addresses and protocols in both families at once, ports
// of no protocol, and IPv6 addresses.
func (f Filter) selection() selection {
	s := selection{family: family(f.Family), unreplied: f.Unreplied}
	if f.Dst.IsValid() {
		s.family = family(familyOf(f.Dst))
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

func family(f Family) byte {
	switch f {
	case IPv4:
		return unix.AF_INET
	case IPv6:
		return unix.AF_INET6
	}
	return unix.AF_UNSPEC
}

// list asks for the flows of the selection.
func (w *writer) list(s selection, seq uint32) {
	at := w.begin(messageGet, unix.NLM_F_DUMP, seq, s.family)
	if s.flags != 0 {
		all := w.nest(ctaTupleOrig)
		if s.flags&byDestination != 0 {
			ip := w.nest(ctaTupleIP)
			w.address(ctaIPv4Dst, ctaIPv6Dst, s.dst)
			w.close(ip)
		}
		if s.flags&byProtocol != 0 {
			ports := w.nest(ctaTupleProto)
			w.attribute(ctaProtoNum, s.proto)
			w.number16(ctaProtoDstPort, s.port)
			w.close(ports)
		}
		w.close(all)
		filter := w.nest(ctaFilter)
		// These two are in the machine's byte order.
		w.attribute(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, s.flags)...)
		w.attribute(ctaFilterReplyFlags, 0, 0, 0, 0)
		w.close(filter)
	}
	if s.unreplied {
		w.number32(ctaStatus, 0)
		w.number32(ctaStatusMask, uint32(SeenReply))
	}
	w.end(at)
}
