package ipvsnl

import (
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// receiveBuffer is the size of the socket's receive buffer. Its buffer can hold the refusals of a
// whole batch; the kernel accounts 1 KiB for each.
const receiveBuffer = 4 << 20

// socket is a generic netlink socket. Except for Close, calls of its methods must not overlap.
type socket struct {
	*nlsock.Socket
	// family is the number of the IPVS family in this kernel.
	family uint16
	seq    uint32
	// Writer has the next messages.
	nlsock.Writer
	// owing reports whether a request was sent whose answers have not all arrived.
	owing bool
}

func openSocket(family uint16) (*socket, error) {
	s, err := nlsock.Open(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	_ = s.Control(func(fd uintptr) { // without the option the buffer holds fewer refusals, which is only slower
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	})
	s.Patience = 2 * maxExchange // a Client abandons a socket earlier
	return &socket{Socket: s, family: family}, nil
}

// abandon closes the socket without waiting. Closing waits for calls that are in the kernel.
func (s *socket) abandon() {
	go func() { _ = s.Close() }()
}
