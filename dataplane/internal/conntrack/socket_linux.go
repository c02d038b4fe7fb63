package conntrack

import (
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// socket speaks to the kernel's netfilter, and numbers what it says.
type socket struct {
	*nlsock.Socket
	seq uint32
}

func openSocket() (*socket, error) {
	s, err := nlsock.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return &socket{Socket: s}, nil
}

// next is the number for the next message.
func (s *socket) next() uint32 {
	s.seq++
	return s.seq
}
