package userspace

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// arrival returns what waits until there is a datagram to read, without a buffer for it: most of many frontends are idle.
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

// burst is how many datagrams are read before a look at whether the socket is closed or has a deadline that passed.
const burst = 64

// receive hands each datagram of the backend to use until the socket fails, is closed or has a deadline that passed, even
// where there is always a next one.
func (x *flow) receive(use func([]byte)) error {
	raw, err := x.socket.SyscallConn()
	for err == nil {
		err = receiveBurst(raw, use)
	}
	return err
}

// receiveBurst waits for datagrams, and holds a buffer only while there is something to read. Closing the socket waits for it.
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

// answers is how many bytes of answers may wait in the devices' queues, with what the kernel needs beside them: as many as fit into
// a queue of fq_codel. All clients of a frontend have its socket in common, and with less one whose link is slow takes all.
const answers = 32 << 20

// widen makes room for answers in the socket of a frontend.
func widen(pc *net.UDPConn) {
	raw, err := pc.SyscallConn()
	if err == nil {
		err = control(raw, func(fd uintptr) error {
			return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, answers/2)
		})
	}
	if err != nil { // it takes CAP_NET_ADMIN
		_ = pc.SetWriteBuffer(answers / 2) // as much as this user may have
	}
}

// sender returns what sends to a client, or, where to is invalid, to who the socket is connected to, and drops what there is no
// room for: no one waits for whose link is slow. It is for one goroutine at a time.
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

// zoneIndex is the number of a zone's device; 0 where there is none.
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
