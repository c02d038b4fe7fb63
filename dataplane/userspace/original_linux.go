package userspace

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// originalDst is the value of both SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST.
const originalDst = 80

// originalOf returns the original destination of a redirected connection. For a connection that was
// not redirected, it returns the socket's own address or an error.
func originalOf(fd int, is4 bool) (netip.AddrPort, error) {
	if is4 {
		return original4(fd)
	}
	return original6(fd)
}

// original4 reads a sockaddr_in (family, port, address) into the only structure in x/sys that is
// large enough.
func original4(fd int) (netip.AddrPort, error) {
	s, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, originalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := s.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}

// original6 reads a sockaddr_in6, which is the first field of the structure.
func original6(fd int) (netip.AddrPort, error) {
	s, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, originalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, s.Addr.Port))
	return netip.AddrPortFrom(netip.AddrFrom16(s.Addr.Addr).Unmap(), port), nil
}

func wantDestination(fd uintptr, is4 bool) error {
	if is4 {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
}

// destinationOf returns the destination address of a datagram from its control messages, or an
// invalid address. The zone of a link-local address is the index of its interface, which replies
// need.
func destinationOf(control []byte, is4 bool) netip.Addr {
	var ip net.IP
	device := 0
	if is4 {
		var m ipv4.ControlMessage
		if m.Parse(control) == nil {
			ip = m.Dst
		}
	} else {
		var m ipv6.ControlMessage
		if m.Parse(control) == nil {
			ip, device = m.Dst, m.IfIndex
		}
	}
	a, _ := netip.AddrFromSlice(ip) // invalid if control contains no address
	if a.Is6() && a.IsLinkLocalUnicast() {
		return a.WithZone(strconv.Itoa(device))
	}
	return a.Unmap()
}

// sourceControl returns a control message that sets the source address of a datagram.
func sourceControl(local netip.Addr) []byte {
	if local.Is4() {
		return (&ipv4.ControlMessage{Src: local.AsSlice()}).Marshal()
	}
	return (&ipv6.ControlMessage{Src: local.AsSlice(), IfIndex: int(zoneIndex(local.Zone()))}).Marshal()
}
