package userspace

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop makes its system calls without notifying Go's scheduler, because they never block. This
// saves a tenth of a connection's CPU time.

// raw returns the result of a system call that can't block. If the call was interrupted, raw
// repeats it.
//
// Callers convert pointers to uintptr arguments. The pointers stay valid because nosplit functions,
// such as raw and RawSyscall6, never grow the stack, which would move the caller's variables. The
// garbage collector also can't stop the goroutine in such calls.
//
//go:nosplit
func raw(number, a, b, c, d, e, f uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(number, a, b, c, d, e, f)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func rawRead(fd int, b []byte) (int, syscall.Errno) {
	return raw(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
}

func rawPeek(fd int, b []byte) (int, syscall.Errno) {
	return raw(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
}

func rawWrite(fd int, b []byte) (int, syscall.Errno) {
	return raw(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
}

// rawSplice moves at most n bytes between a pipe and a socket.
func rawSplice(from, to, n int) (int, syscall.Errno) {
	return raw(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
}

func rawClose(fd int) { _, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func rawReset(fd int) {
	linger := unix.Linger{Onoff: 1}
	_, _ = raw(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER, uintptr(unsafe.Pointer(&linger)), unsafe.Sizeof(linger), 0)
	rawClose(fd)
}

func rawShutdown(fd int) syscall.Errno {
	_, errno := raw(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0, 0, 0, 0)
	return errno
}

func rawOption(fd, level, name, value int) syscall.Errno {
	v := int32(value)
	_, errno := raw(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v), 0)
	return errno
}

func rawAccept(listener int) (int, netip.AddrPort, syscall.Errno) {
	var sa socketAddress
	size := uint32(len(sa))
	fd, errno := raw(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return fd, sa.addrPort(), errno
}

// rawDial starts a connection. If from is valid, it is the source address, which may belong to
// another host. rawDial returns a descriptor and 0 or EINPROGRESS, or -1 and another error.
func rawDial(to *socketAddress, from netip.Addr, mss int) (int, syscall.Errno) {
	fd, errno := raw(unix.SYS_SOCKET, uintptr(to.family()), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	errno = rawOption(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if mss > 0 && errno == 0 {
		errno = rawOption(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, min(mss, maxSegment))
	}
	if errno == 0 && from.IsValid() {
		errno = rawBind(fd, from)
	}
	if size := uintptr(to.size()); errno == 0 { // before the pointer conversion, because size may grow the stack
		_, errno = raw(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), size, 0, 0, 0)
	}
	if errno != 0 && errno != unix.EINPROGRESS {
		rawClose(fd)
		return -1, errno
	}
	return fd, errno
}

// rawBind binds a TCP socket to a client's address. The kernel chooses the port when the socket
// connects, so all ports are available for each backend. The client's own port could still be in
// use by an earlier connection to the same backend.
func rawBind(fd int, from netip.Addr) syscall.Errno {
	errno := allowForeign(fd, from)
	if errno == 0 {
		errno = rawOption(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}
	sa := newDialAddress(netip.AddrPortFrom(from, 0))
	if size := uintptr(sa.size()); errno == 0 {
		_, errno = raw(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&sa)), size, 0, 0, 0)
	}
	return errno
}

// allowForeign lets a socket be bound to another host's address, from.
func allowForeign(fd int, from netip.Addr) syscall.Errno {
	if from.Is4() {
		return rawOption(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	}
	return rawOption(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
}

// socketAddress is a sockaddr_in or sockaddr_in6.
type socketAddress [unix.SizeofSockaddrInet6]byte

// dialAddress is an address in the form that connect needs.
type dialAddress = socketAddress

func newDialAddress(at netip.AddrPort) (sa socketAddress) {
	scope := zoneIndex(at.Addr().Zone())
	sa[2], sa[3] = byte(at.Port()>>8), byte(at.Port())
	if at.Addr().Is4() {
		*(*uint16)(unsafe.Pointer(&sa)) = unix.AF_INET
		copy(sa[4:], at.Addr().AsSlice())
		return sa
	}
	*(*uint16)(unsafe.Pointer(&sa)) = unix.AF_INET6
	copy(sa[8:], at.Addr().AsSlice())
	*(*uint32)(unsafe.Pointer(&sa[24])) = scope
	return sa
}

func (sa *socketAddress) family() uint16 { return *(*uint16)(unsafe.Pointer(sa)) }

func (sa *socketAddress) size() int {
	if sa.family() == unix.AF_INET {
		return unix.SizeofSockaddrInet4
	}
	return unix.SizeofSockaddrInet6
}

func (sa *socketAddress) addrPort() netip.AddrPort {
	port := uint16(sa[2])<<8 | uint16(sa[3])
	if sa.family() == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sa[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(sa[8:24])).Unmap(), port)
}

// dialError returns an error like those that package net returns for failed dials.
func dialError(to netip.AddrPort, cause error) error {
	if errno, ok := cause.(syscall.Errno); ok {
		cause = os.NewSyscallError("connect", errno)
	}
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: cause}
}
