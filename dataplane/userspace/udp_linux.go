package userspace

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// arrival returns a function that waits for a datagram without holding a buffer, because most of
// many frontends are idle.
func arrival(pc *net.UDPConn) func() error {
	raw, err := pc.SyscallConn()
	if err != nil {
		return func() error { return err }
	}
	return func() error {
		return raw.Read(func(fd uintptr) bool {
			_, _, err := syscall.Syscall6(syscall.SYS_RECVFROM, fd, 0, 0, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
			return err != syscall.EAGAIN
		})
	}
}

// burst is the maximum number of datagrams between two checks for a closed socket or a passed
// deadline.
const burst = 64

// receive passes each datagram of the backend to use, until the socket fails, is closed or its
// deadline passes. It stops even if datagrams arrive continuously.
func (x *flow) receive(use func([]byte)) error {
	raw, err := x.socket.SyscallConn()
	for err == nil {
		err = receiveBurst(raw, use)
	}
	return err
}

// receiveBurst waits for datagrams, and holds a buffer only while it reads them. Closing the socket
// waits until receiveBurst returns.
func receiveBurst(raw syscall.RawConn, use func([]byte)) error {
	var failed error
	err := raw.Read(func(fd uintptr) bool {
		buf := datagrams.Get().(*[datagram]byte)
		defer datagrams.Put(buf)
		for range burst {
			n, err := syscall.Read(int(fd), buf[:])
			switch {
			case err == nil:
				use(buf[:n])
			case err == syscall.EAGAIN:
				return false
			case passing(err):
			default:
				failed = err
				return true
			}
		}
		return true
	})
	return cmp.Or(err, failed)
}

// answers limits how many bytes of replies, including the kernel's overhead, may wait in device
// queues. It is the size of an fq_codel queue. All clients of a frontend share the socket, so a
// client with a slow link could use up a smaller buffer.
const answers = 32 << 20

// widen enlarges the send buffer of a frontend's socket.
func widen(pc *net.UDPConn) {
	raw, err := pc.SyscallConn()
	if err == nil {
		err = control(raw, func(fd uintptr) error {
			return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, answers/2)
		})
	}
	if err != nil { // SO_SNDBUFFORCE needs CAP_NET_ADMIN
		_ = pc.SetWriteBuffer(answers / 2) // limited to net.core.wmem_max
	}
}

// sender returns a function that sends to a client, or to the socket's peer if to is invalid. If
// the socket has no room, the function drops the datagram, so no goroutine waits for a slow link.
// The function must not be called concurrently.
func (w way) sender(to netip.AddrPort) func([]byte) error {
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return func([]byte) error { return err }
	}
	var control []byte
	if w.local.IsValid() {
		control = sourceControl(w.local)
	}
	var sa unix.Sockaddr
	if to.IsValid() {
		sa = sockaddr(to.Addr(), to.Port())
	}
	var datagram []byte
	var failed error
	send := func(fd uintptr) bool {
		_, failed = unix.SendmsgN(int(fd), datagram, control, sa, unix.MSG_DONTWAIT)
		return true
	}
	return func(b []byte) error {
		datagram = b
		err := raw.Write(send)
		return cmp.Or(err, failed)
	}
}

func zoneIndex(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	if dev, err := net.InterfaceByName(zone); err == nil {
		return uint32(dev.Index)
	}
	return 0
}
