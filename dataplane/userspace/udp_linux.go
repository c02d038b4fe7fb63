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

// sender returns what sends answers to a client, and drops what there is no room for: all clients have the socket in common,
// and may not wait for one whose link is slow.
func (w way) sender(to netip.AddrPort) func([]byte) error {
	raw, err := w.socket.SyscallConn()
	if err != nil {
		return func([]byte) error { return err }
	}
	var control []byte
	if w.local.IsValid() {
		control = sourceControl(w.local)
	}
	sa := sockaddr(to.Addr(), to.Port())
	return func(b []byte) error {
		var failed error
		err := raw.Write(func(fd uintptr) bool {
			_, failed = unix.SendmsgN(int(fd), b, control, sa, unix.MSG_DONTWAIT)
			return true
		})
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
