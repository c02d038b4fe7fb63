package userspace

import "syscall"

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
