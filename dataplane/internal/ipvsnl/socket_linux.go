package ipvsnl

import (
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// receiveBuffer is the size of the socket's receive buffer. It can hold refusals for a whole batch.
// The kernel accounts 1 KiB for each refusal.
const receiveBuffer = 4 << 20

// socket is a generic netlink socket. Except for Close, calls to its methods must not overlap.
type socket struct {
	*nlsock.Socket
	// family is the number of the IPVS netlink family in this kernel.
	family uint16
	seq    uint32
	// Writer holds the next messages.
	nlsock.Writer
	// owing reports whether a request has been sent whose answers are still missing.
	owing bool
}

func openSocket(family uint16) (*socket, error) {
	s, err := nlsock.Open(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	_ = s.Control(func(fd uintptr) { // on failure, the buffer holds fewer refusals, which is only slower
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	})
	s.Patience = 2 * maxExchange // a Client abandons its socket before that
	return &socket{Socket: s, family: family}, nil
}

// abandon closes the socket without waiting. Close would wait for pending system calls.
func (s *socket) abandon() {
	go func() { _ = s.Close() }()
}
