package userspace

import (
	"errors"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// holds reports whether vipd can prevent other programs from using closed ports.
const holds = true

// heldPort is a port that vipd occupies without serving it, so no other program on the host
// receives a VIP's clients. The kernel sends resets for a TCP socket that does not listen, and port
// unreachable for a UDP socket that is connected to itself. It sends nothing if the socket's filter
// drops everything.
type heldPort struct {
	d    *Dataplane
	fd   int
	port uint16
}

// hold binds a socket to an address and port that vipd does not serve. Port 0 selects any free
// port.
func (d *Dataplane) hold(at netip.AddrPort, proto balancer.Protocol, silent bool) (*heldPort, error) {
	family, kind := unix.AF_INET6, unix.SOCK_STREAM
	if at.Addr().Is4() {
		family = unix.AF_INET
	}
	if proto == balancer.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	h := &heldPort{d: d, fd: fd}
	d.budget.take(1)
	if err := h.bind(at, proto); err != nil {
		h.close()
		return nil, err
	}
	if err := h.answer(at.Addr(), proto, silent); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// bind binds the socket to a port, even if established connections use the port, and stores the
// port number.
func (h *heldPort) bind(at netip.AddrPort, proto balancer.Protocol) error {
	if proto == balancer.TCP && at.Port() != 0 {
		if err := unix.SetsockoptInt(h.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
	}
	if err := anyAddress(uintptr(h.fd), at.Addr()); err != nil {
		return err
	}
	if at.Addr().Is6() {
		if err := unix.SetsockoptInt(h.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(h.fd, sockaddr(at.Addr(), at.Port())); err != nil {
		return err
	}
	sa, err := unix.Getsockname(h.fd)
	if err != nil {
		return err
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		h.port = uint16(sa.Port)
	case *unix.SockaddrInet6:
		h.port = uint16(sa.Port)
	}
	return nil
}

// answer determines how the kernel answers the port's clients.
func (h *heldPort) answer(at netip.Addr, proto balancer.Protocol, silent bool) error {
	switch {
	case silent:
		if err := attach(uintptr(h.fd), []bpf.Instruction{bpf.RetConstant{Val: 0}}); err != nil || proto == balancer.UDP {
			return err
		}
		return unix.Listen(h.fd, 1)
	case proto == balancer.UDP:
		if at.IsUnspecified() {
			at = loopbackOf(at)
		}
		err := unix.Connect(h.fd, sockaddr(at, h.port))
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil // this host does not have the VIP, so no client reaches the port
		}
		return err
	}
	// Without SO_REUSEADDR, other sockets conflict with this one even if they set the option.
	return unix.SetsockoptInt(h.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
}

func (h *heldPort) close() {
	if h != nil {
		_ = unix.Close(h.fd)
		h.d.budget.give(1)
	}
}

func loopbackOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port), ZoneId: zoneIndex(a.Zone())}
}
