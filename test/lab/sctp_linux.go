package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// HasSCTP reports whether the kernel has SCTP sockets, or loads a module for them on demand.
func HasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// ListenSCTP is like Listen, but accepts SCTP associations. An association is used like a TCP
// connection, but can't be half-closed.
func (n *NS) ListenSCTP(at netip.AddrPort) (ln net.Listener, err error) {
	err = n.Do(func() error {
		file, err := sctpSocket(at)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // package net uses a copy of the descriptor
		if err := unix.Listen(int(file.Fd()), unix.SOMAXCONN); err != nil {
			return fmt.Errorf("listening on %s: %w", at, err)
		}
		ln, err = net.FileListener(file) // FileListener treats any stream socket as TCP
		return err
	})
	return ln, err
}

// DialSCTP opens an association from one address of the namespace; otherwise SCTP would announce
// all addresses.
func (n *NS) DialSCTP(ctx context.Context, from netip.AddrPort, to netip.AddrPort) (conn net.Conn, err error) {
	err = n.Do(func() error {
		file, err := sctpSocket(from)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		fd := int(file.Fd()) // Fd makes the socket blocking, so SO_SNDTIMEO limits connect
		if deadline, ok := ctx.Deadline(); ok {
			left := unix.NsecToTimeval(max(time.Until(deadline), time.Millisecond).Nanoseconds())
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &left); err != nil {
				return err
			}
		}
		if err := unix.Connect(fd, sockaddr(to)); err != nil {
			if err == unix.EINPROGRESS || err == unix.EAGAIN {
				err = os.ErrDeadlineExceeded
			}
			return fmt.Errorf("opening an association to %s: %w", to, err)
		}
		conn, err = net.FileConn(file)
		return err
	})
	return conn, err
}

func sctpSocket(at netip.AddrPort) (*os.File, error) {
	family := unix.AF_INET6
	if at.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, fmt.Errorf("opening an SCTP socket: %w", err)
	}
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("binding an SCTP socket to %s: %w", at, err)
	}
	return os.NewFile(uintptr(fd), "sctp"), nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
