package userspace

import (
	"net"
	"syscall"
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

// receive hands each datagram of the backend to use until the socket fails or is closed. It holds a buffer only while
// there is something to read.
func (x *flow) receive(use func([]byte)) error {
	raw, err := x.socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		buf := datagrams.Get().(*[datagram]byte)
		defer datagrams.Put(buf)
		for {
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
	})
	if err != nil {
		return err
	}
	return failed
}
