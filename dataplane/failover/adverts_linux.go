package failover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/nlsock"
)

// protocolVRRP is the number of the IP protocol.
const protocolVRRP = 112

// advertTTL is the TTL or hop limit of each sent packet: a receiver knows by it that no router has
// forwarded the packet.
const advertTTL = 255

// vrrpGroup returns the multicast group of adverts.
func vrrpGroup(v4 bool) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{224, 0, 0, 18})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 0x12})
}

// Adverts sends and receives the packets of VRRP: it has a raw socket for each interface and
// family, which receives multicast and unicast packets, except its own multicast packets. Any
// goroutine may call its methods.
type Adverts struct {
	received func(Advert)
	log      *slog.Logger

	mu         sync.Mutex // guards the rest
	interfaces []string
	sockets    map[advertLink]*advertSocket
	running    sync.WaitGroup
	closed     bool
}

// advertLink is an interface and a family.
type advertLink struct {
	name string
	v4   bool
}

// NewAdverts returns Adverts without interfaces. It calls received with each packet, from several
// goroutines.
func NewAdverts(received func(Advert), log *slog.Logger) *Adverts {
	return &Adverts{received: received, log: log, sockets: map[advertLink]*advertSocket{}}
}

// Follow sets the interfaces. A missing interface is followed once it appears.
func (x *Adverts) Follow(interfaces []string) error {
	x.mu.Lock()
	x.interfaces = slices.Clone(interfaces)
	x.mu.Unlock()
	return x.reopen()
}

// reopen opens the sockets that are missing, and replaces the sockets of interfaces that have
// another index: such an interface was renamed or created again, and the group was left with its
// predecessor.
func (x *Adverts) reopen() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil
	}
	index := map[string]int{}
	for _, name := range x.interfaces {
		if device, err := net.InterfaceByName(name); err == nil {
			index[name] = device.Index
		}
	}
	for link, s := range x.sockets {
		if s.index != index[link.name] {
			_ = s.file.Close() // its interface has gone
			delete(x.sockets, link)
		}
	}
	var all []error
	for name, i := range index {
		for _, link := range []advertLink{{name, true}, {name, false}} {
			if x.sockets[link] != nil {
				continue
			}
			s, err := openAdverts(link, i)
			if err != nil {
				all = append(all, err)
				continue
			}
			x.sockets[link] = s
			x.running.Go(func() { s.receive(x.received) })
		}
	}
	return errors.Join(all...)
}

// Run follows changes of the interfaces until ctx ends, and then closes the sockets.
func (x *Adverts) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := x.followLinks(ctx); err != nil && ctx.Err() == nil {
			x.log.Debug("following the interfaces of VRRP", "err", err)
		}
		wake.Sleep(ctx, time.Second)
	}
	x.mu.Lock()
	x.closed = true
	for _, s := range x.sockets {
		_ = s.file.Close() // nothing is sent any longer
	}
	x.mu.Unlock()
	x.running.Wait()
}

// followLinks reopens sockets at each change of an interface until ctx ends or the subscription
// fails. It starts by reopening, because earlier changes are lost.
func (x *Adverts) followLinks(ctx context.Context) error {
	const room = 1 << 20 // the kernel reports it if events do not fit
	s, err := nlsock.Subscribe(unix.NETLINK_ROUTE, room, unix.RTNLGRP_LINK)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Now()) })()
	for {
		if err := x.reopen(); err != nil {
			x.log.Warn("adverts can't be sent on an interface", "err", err)
		}
		if _, err := s.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return errors.Join(fmt.Errorf("reading events: %w", err), s.Close())
		}
	}
}

// Send sends a packet from one of the host's addresses to the group or to a peer. It never waits.
// The source is given with each packet: otherwise the kernel would choose it, perhaps a VIP, which
// peers treat as another router.
func (x *Adverts) Send(on string, from, to netip.Addr, data []byte) error {
	x.mu.Lock()
	s := x.sockets[advertLink{on, from.Is4()}]
	x.mu.Unlock()
	err := error(unix.ENODEV)
	if s != nil {
		err = s.send(from, to, data)
	}
	if err != nil {
		return fmt.Errorf("sending an advert from %s to %s on %s: %w", from, to, on, err)
	}
	return nil
}

// advertSocket is the socket of an interface and a family.
type advertSocket struct {
	link  advertLink
	index int // of the interface
	file  *os.File
	raw   syscall.RawConn
}

// openAdverts opens a socket that is a member of the group.
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
			continue // the interface went down, or a peer's host answered by ICMP
		}
		if a, ok := s.advert(b[:n], control[:size], from); ok {
			received(a)
		}
	}
}

// advert reads a packet. It reports whether the packet is whole.
func (s *advertSocket) advert(b, control []byte, from unix.Sockaddr) (a Advert, ok bool) {
	a = Advert{On: s.link.name, At: time.Now()}
	const minHeader = 20
	switch from := from.(type) {
	case *unix.SockaddrInet4: // the kernel passes the header on, and has checked it
		if len(b) < minHeader || len(b) < int(b[0]&15)*4 {
			return a, false
		}
		a.From, a.To, a.TTL = netip.AddrFrom4(from.Addr), netip.AddrFrom4([4]byte(b[16:20])), int(b[8])
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

// read reads a control message.
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
