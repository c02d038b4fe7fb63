package ipvsnl

import (
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// receiveBuffer is the size of the socket's receive buffer. It can hold the refusals of a whole
// batch, for each of which the kernel accounts 1 KiB.
const receiveBuffer = 4 << 20

// socket is a generic netlink socket. Except for Close, calls of its methods must not overlap.
type socket struct {
	*nlsock.Socket
	// family is the number of the IPVS family in this kernel.
	family uint16
	seq    uint32
	// Writer holds the next messages.
	nlsock.Writer
	// owing reports whether answers to a sent request are still missing.
	owing bool
}

func openSocket(family uint16) (*socket, error) {
	s, err := nlsock.Open(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	_ = s.Control(func(fd uintptr) { // if this fails, the buffer holds fewer refusals, which is only slower
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	})
	s.Patience = 2 * maxExchange // a Client abandons its socket earlier
	return &socket{Socket: s, family: family}, nil
}

// abandon closes the socket without waiting. Close would wait for running system calls.
func (s *socket) abandon() {
	go func() { _ = s.Close() }()
}
