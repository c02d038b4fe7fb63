package ipvsnl

import (
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// receiveBuffer is what the kernel may have ready for us: refusals of a whole batch, which are 1 KiB each in its account.
const receiveBuffer = 4 << 20

// socket speaks generic netlink with the kernel. It is for one goroutine at a time, but for Close.
type socket struct {
	*nlsock.Socket
	// family is the number of IPVS in this kernel.
	family uint16
	seq    uint32
	// What is sent next.
	nlsock.Writer
	// owing: a question was sent whose answers have not all come.
	owing bool
}

func openSocket(family uint16) (*socket, error) {
	s, err := nlsock.Open(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	_ = s.Control(func(fd uintptr) { // without it there is room for fewer refusals: slower, and no less right
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	})
	s.Patience = 2 * maxExchange // a Kernel gives a socket up before
	return &socket{Socket: s, family: family}, nil
}

// abandon closes the socket for good without waiting: closing lasts as long as a call with it is in the kernel.
func (s *socket) abandon() {
	go func() { _ = s.Close() }()
}
