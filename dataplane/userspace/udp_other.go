//go:build !unix

package userspace

// receive hands each datagram of the backend to use until the socket fails or is closed.
func (x *flow) receive(use func([]byte)) error {
	buf := make([]byte, datagram)
	for {
		n, err := x.socket.Read(buf)
		switch {
		case err == nil:
			use(buf[:n])
		case !passing(err):
			return err
		}
	}
}
