package ipvsnl

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/nlsock"
)

// These are message types that are not a [Verb] (IPVS_CMD_..., include/uapi/linux/ip_vs.h).
const (
	getService     = 4
	getDestination = 8
)

// These are message attributes (IPVS_CMD_ATTR_...).
const (
	aboutService     = 1
	aboutDestination = 2
)

// These are virtual server attributes (IPVS_SVC_ATTR_...).
const (
	serviceFamily    = 1
	serviceProtocol  = 2
	serviceAddr      = 3
	servicePort      = 4
	serviceMark      = 5
	serviceScheduler = 6
	serviceFlags     = 7
	serviceTimeout   = 8
	serviceNetmask   = 9
	serviceStats     = 10
	serviceStats64   = 12
)

// These are destination attributes (IPVS_DEST_ATTR_...).
const (
	destinationAddr     = 1
	destinationPort     = 2
	destinationForward  = 3
	destinationWeight   = 4
	destinationUpper    = 5
	destinationLower    = 6
	destinationActive   = 7
	destinationInactive = 8
	destinationStats    = 10
	destinationFamily   = 11
	destinationStats64  = 12
)

// These are counter attributes (IPVS_STATS_ATTR_...).
const (
	statsConnections = 1
	statsInPackets   = 2
	statsOutPackets  = 3
	statsInBytes     = 4
	statsOutBytes    = 5
)

// version is the protocol version (IPVS_GENL_VERSION).
const version = 1

func (s *socket) begin(command byte, flags uint16) {
	s.seq++
	s.Begin(s.family, flags, s.seq, command, version, 0, 0) // genlmsghdr
}

func familyOf(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (s *socket) op(o *Op) {
	s.begin(byte(o.Verb), 0)
	s.Nest(aboutService)
	s.key(o.Service.Key)
	if o.Verb == AddService || o.Verb == EditService {
		s.service(&o.Service)
	}
	s.Unnest()
	if o.Verb >= AddDestination {
		s.Nest(aboutDestination)
		s.destination(o.Service.Key, &o.Destination, o.Verb == DeleteDestination)
		s.Unnest()
	}
	s.End()
}

func (s *socket) key(k balancer.Key) {
	s.Native16(serviceFamily, familyOf(k.Addr))
	if k.Port.IsRange() {
		s.Native32(serviceMark, Mark(k))
		return
	}
	s.Native16(serviceProtocol, uint16(k.Proto.Number()))
	s.Addr(serviceAddr, k.Addr)
	s.Wire16(servicePort, k.Port.First())
}

func (s *socket) service(v *Service) {
	s.String(serviceScheduler, v.Scheduler)
	s.Attribute(serviceFlags, 8) // struct ip_vs_flags consists of the flags and the mask of valid flags
	s.B = binary.NativeEndian.AppendUint32(s.B, uint32(v.Flags))
	s.B = binary.NativeEndian.AppendUint32(s.B, ^uint32(0))
	s.Native32(serviceTimeout, uint32(v.Timeout/time.Second))
	s.netmask(cmp.Or(v.Prefix, v.Key.Addr.BitLen()), v.Key.Addr.Is4())
}

// netmask sets the prefix length of persistent clients. IPv4 uses a mask. IPv6 uses the prefix
// length, which the kernel requires even without persistence.
func (s *socket) netmask(prefix int, is4 bool) {
	if is4 {
		s.Wire32(serviceNetmask, ^uint32(0)<<(32-prefix))
		return
	}
	s.Native32(serviceNetmask, uint32(prefix))
}

// prefixOf is the inverse of netmask. It returns 0 for whole addresses.
func prefixOf(netmask uint32, is4 bool) int {
	if is4 {
		return bits.OnesCount32(netmask) % 32
	}
	return int(netmask) % 128
}

func (s *socket) destination(of balancer.Key, d *Destination, identity bool) {
	s.Native16(destinationFamily, familyOf(d.Addr.Addr()))
	s.Addr(destinationAddr, d.Addr.Addr())
	s.Wire16(destinationPort, swapPort(of, d.Addr.Port()))
	if identity {
		return
	}
	s.Native32(destinationForward, uint32(method(d.Forward)))
	s.Native32(destinationWeight, uint32(d.Weight))
	s.Native32(destinationUpper, d.Upper)
	s.Native32(destinationLower, d.Lower)
}

// attributes reads the attributes of a message.
type attributes struct{ nlsock.Attributes }

// atLeast returns the value. If the value is shorter than n bytes, atLeast records an error and
// returns n zeros.
func (a *attributes) atLeast(n int) []byte {
	if len(a.Value) < n {
		a.Err = nlsock.ErrMalformed
		return make([]byte, n)
	}
	return a.Value
}

func (a *attributes) u16() uint16  { return binary.NativeEndian.Uint16(a.atLeast(2)) }
func (a *attributes) u32() uint32  { return binary.NativeEndian.Uint32(a.atLeast(4)) }
func (a *attributes) be16() uint16 { return binary.BigEndian.Uint16(a.atLeast(2)) }

// counter decodes a counter of 64 bits, or of 32 bits in old kernels.
func (a *attributes) counter() uint64 {
	if len(a.Value) < 8 {
		return uint64(a.u32())
	}
	return binary.NativeEndian.Uint64(a.Value)
}

// addrOf decodes an address, which has 16 bytes in both families.
func addrOf(b []byte, family uint16) (netip.Addr, bool) {
	switch {
	case family == unix.AF_INET && len(b) >= 4:
		return netip.AddrFrom4([4]byte(b)), true
	case family == unix.AF_INET6 && len(b) >= 16:
		return netip.AddrFrom16([16]byte(b)), true
	}
	return netip.Addr{}, false
}

// about returns the attributes that are nested in the attribute of this kind.
func about(body []byte, kind uint16) (attributes, error) {
	if len(body) < unix.GENL_HDRLEN {
		return attributes{}, nlsock.ErrMalformed
	}
	a := attributes{nlsock.In(body[unix.GENL_HDRLEN:])}
	for a.Next() {
		if a.Kind == kind {
			return attributes{nlsock.In(a.Value)}, nil
		}
	}
	return attributes{}, nlsock.ErrMalformed
}

// readService decodes a virtual server. ok is false if the virtual server has no key, because it
// has an unknown firewall mark, or a protocol that no frontend can have.
func readService(body []byte, known *marks) (v ServiceState, ok bool, err error) {
	a, err := about(body, aboutService)
	if err != nil {
		return v, false, err
	}
	var family uint16
	var netmask, mark uint32
	var addr, stats, stats64 []byte
	for a.Next() {
		switch a.Kind {
		case serviceMark:
			mark = a.u32()
		case serviceFamily:
			family = a.u16()
		case serviceProtocol:
			v.Key.Proto = balancer.ProtocolOf(byte(a.u16()))
		case serviceAddr:
			addr = a.Value
		case servicePort:
			v.Key.Port = balancer.PortRange(a.be16())
		case serviceScheduler:
			v.Scheduler = unix.ByteSliceToString(a.Value)
		case serviceFlags:
			v.Flags = Flags(a.u32()) &^ hashed
		case serviceTimeout:
			v.Timeout = time.Duration(a.u32()) * time.Second
		case serviceNetmask:
			netmask = a.u32()
		case serviceStats:
			stats = a.Value
		case serviceStats64:
			stats64 = a.Value
		}
	}
	switch {
	case a.Err != nil:
		return v, false, a.Err
	case mark != 0:
		if v.Key, ok = known.find(mark); !ok || familyOf(v.Key.Addr) != family {
			return v, false, nil
		}
	case v.Key.Proto == "" || addr == nil:
		return v, false, nil
	default:
		if v.Key.Addr, ok = addrOf(addr, family); !ok {
			return v, false, nlsock.ErrMalformed
		}
	}
	v.Prefix = prefixOf(netmask, v.Key.Addr.Is4())
	v.Stats, err = readStats(stats, stats64)
	return v, err == nil, err
}

// readDestination decodes a destination of a virtual server.
func readDestination(body []byte, of balancer.Key) (d DestinationState, err error) {
	family := familyOf(of.Addr)
	a, err := about(body, aboutDestination)
	if err != nil {
		return d, err
	}
	var addr, stats, stats64 []byte
	var port uint16
	for a.Next() {
		switch a.Kind {
		case destinationAddr:
			addr = a.Value
		case destinationPort:
			port = a.be16()
		case destinationForward:
			if n := a.u32() & 7; int(n) < len(methods) { // IP_VS_CONN_F_FWD_MASK
				d.Forward = methods[n]
			}
		case destinationWeight:
			d.Weight = int(int32(a.u32()))
		case destinationUpper:
			d.Upper = a.u32()
		case destinationLower:
			d.Lower = a.u32()
		case destinationActive:
			d.Active = a.u32()
		case destinationInactive:
			d.Inactive = a.u32()
		case destinationFamily: // sent since Linux 3.18
			family = a.u16()
		case destinationStats:
			stats = a.Value
		case destinationStats64:
			stats64 = a.Value
		}
	}
	ip, ok := addrOf(addr, family)
	if a.Err != nil || !ok {
		return d, nlsock.ErrMalformed
	}
	d.Addr = netip.AddrPortFrom(ip, swapPort(of, port))
	d.Stats, err = readStats(stats, stats64)
	return d, err
}

// readStats decodes 64-bit counters, or 32-bit counters from kernels before Linux 4.1.
func readStats(narrow, wide []byte) (s Stats, err error) {
	if wide == nil {
		wide = narrow
	}
	a := attributes{nlsock.In(wide)}
	for a.Next() {
		switch a.Kind {
		case statsConnections:
			s.Connections = a.counter()
		case statsInPackets:
			s.InPackets = a.counter()
		case statsOutPackets:
			s.OutPackets = a.counter()
		case statsInBytes:
			s.InBytes = a.counter()
		case statsOutBytes:
			s.OutBytes = a.counter()
		}
	}
	return s, a.Err
}
