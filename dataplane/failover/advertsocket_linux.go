package failover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// advertSocket is the raw socket for an interface and an address family.
type advertSocket struct {
	link  advertLink
	index int // index of the interface
	file  *os.File
	raw   syscall.RawConn
}

func openAdverts(link advertLink, index int) (s *advertSocket, err error) {
	family, set := unix.AF_INET6, setAdvert6
	if link.v4 {
		family, set = unix.AF_INET, setAdvert4
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocolVRRP)
	if err == nil {
		err = errors.Join(
			unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link.name),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			filterAdverts(fd, link.v4),
			set(fd, index),
		)
		if err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("opening a socket for VRRP on %s: %w", link.name, err)
	}
	s = &advertSocket{link: link, index: index, file: os.NewFile(uintptr(fd), "vrrp")}
	s.raw, err = s.file.SyscallConn()
	return s, err
}

// networkControl is the traffic class of routing protocols (CS6).
const networkControl = 0xc0

func setAdvert4(fd, index int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, advertTTL),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, advertTTL),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, networkControl),
		unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: vrrpGroup(true).As4(), Ifindex: int32(index)}),
	)
}

func setAdvert6(fd, index int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, advertTTL),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, advertTTL),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, networkControl),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1),
		unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: vrrpGroup(false).As16(), Interface: uint32(index)}),
	)
}

func (s *advertSocket) send(from, to netip.Addr, data []byte) (err error) {
	var source []byte
	var dest unix.Sockaddr
	if s.link.v4 {
		source = unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(s.index), Spec_dst: from.As4()})
		dest = &unix.SockaddrInet4{Addr: to.As4()}
	} else {
		source = unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(s.index), Addr: from.As16()})
		dest = &unix.SockaddrInet6{Addr: to.As16(), ZoneId: uint32(s.index)}
	}
	closed := s.raw.Control(func(fd uintptr) {
		_, err = unix.SendmsgN(int(fd), data, source, dest, unix.MSG_DONTWAIT)
	})
	return errors.Join(closed, err)
}

// receive calls received with each packet until the socket is closed.
func (s *advertSocket) receive(received func(Advert)) {
	b, control := make([]byte, 1<<16), make([]byte, 256)
	for {
		var n, size int
		var from unix.Sockaddr
		var err error
		closed := s.raw.Read(func(fd uintptr) bool {
			n, size, _, from, err = unix.Recvmsg(int(fd), b, control, unix.MSG_DONTWAIT)
			return !errors.Is(err, unix.EAGAIN)
		})
		if closed != nil {
			return
		}
		if err != nil {
			continue // the interface is down, or a peer's host answered with an ICMP error
		}
		if a, ok := s.advert(b[:n], control[:size], from); ok {
			received(a)
		}
	}
}

// advert parses a received packet. It returns false if the packet is incomplete.
func (s *advertSocket) advert(b, control []byte, from unix.Sockaddr) (a Advert, ok bool) {
	a = Advert{On: s.link.name, At: time.Now()}
	const minHeader = 20
	switch from := from.(type) {
	case *unix.SockaddrInet4: // the data includes the IP header, which the kernel has checked
		if len(b) < minHeader || len(b) < int(b[0]&15)*4 {
			return a, false
		}
		a.From = netip.AddrFrom4(from.Addr)
		a.To = netip.AddrFrom4([4]byte(b[16:20]))
		a.TTL = int(b[8])
		b = b[int(b[0]&15)*4:]
	case *unix.SockaddrInet6:
		a.From = netip.AddrFrom16(from.Addr)
	}
	a.Data = slices.Clone(b)
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return a, false
	}
	for _, m := range messages {
		a.read(m)
	}
	return a, true
}

// read stores a control message's value in a.
func (a *Advert) read(m unix.SocketControlMessage) {
	switch d, h := m.Data, m.Header; {
	case h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_TIMESTAMPNS && len(d) >= 16:
		a.At = time.Unix(int64(binary.NativeEndian.Uint64(d)), int64(binary.NativeEndian.Uint64(d[8:])))
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT && len(d) >= 4:
		a.TTL = int(binary.NativeEndian.Uint32(d))
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(d) >= 16:
		a.To = netip.AddrFrom16([16]byte(d))
	}
}

// filterAdverts makes the kernel drop all packets except adverts of version 2 or 3, so other
// packets do not wake this process.
func filterAdverts(fd int, v4 bool) error {
	const version2, version3 = 0x21, 0x31 // version and type of an advert, in one byte
	first := []bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 1}}
	if v4 { // the data includes the IP header
		first = []bpf.Instruction{bpf.LoadMemShift{Off: 0}, bpf.LoadIndirect{Off: 0, Size: 1}}
	}
	program := append(first,
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: version2, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: version3, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 1 << 16},
	)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}
