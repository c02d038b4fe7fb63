package lvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// received is more than the kernel puts into one answer, which is 32 KiB at most.
	received = 64 << 10
	// backlog is what the kernel may have ready for us: refusals of a whole batch, which are 1 KiB each in its account.
	backlog = 4 << 20
)

// socket speaks generic netlink with the kernel. It is for one goroutine at a time, but for close.
type socket struct {
	file *os.File
	raw  syscall.RawConn
	// family is the number of IPVS in this kernel.
	family uint16
	seq    uint32
	in     []byte
	out    []byte
	// owing: a question was sent whose answers have not all come.
	owing bool
	// drain: receive returns unix.EAGAIN instead of waiting.
	drain bool
	// read is called when there is something; n and err are what it got.
	read func(fd uintptr) bool
	n    int
	err  error
}

func openSocket(family uint16) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("opening a generic netlink socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connecting a generic netlink socket to the kernel: %w", err)
	}
	// Without these, refusals carry the refused message, and there is room for fewer: slower, and no less right.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, backlog)
	return newSocket(fd, family)
}

// newSocket takes fd over, which is not to block.
func newSocket(fd int, family uint16) (*socket, error) {
	s := &socket{file: os.NewFile(uintptr(fd), "netlink"), family: family, in: make([]byte, received)}
	var err error
	if s.raw, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("waiting for a generic netlink socket: %w", err)
	}
	s.read = func(fd uintptr) bool {
		for {
			if s.n, s.err = unix.Read(int(fd), s.in); s.err != unix.EINTR {
				return s.drain || s.err != unix.EAGAIN
			}
		}
	}
	return s, nil
}

func (s *socket) close() error { return s.file.Close() }

// send sends what out holds.
func (s *socket) send() error {
	var err error
	waiting := s.raw.Write(func(fd uintptr) bool {
		for {
			if _, err = unix.Write(int(fd), s.out); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	return errors.Join(waiting, err)
}

// receive waits for messages, which are valid until it is called again.
func (s *socket) receive() (messages, error) {
	if err := s.raw.Read(s.read); err != nil {
		return messages{}, err
	}
	if s.err != nil {
		return messages{}, s.err
	}
	return messages{rest: s.in[:s.n]}, nil
}

// errMalformed: what the kernel sent is not what the protocol says.
var errMalformed = errors.New("the kernel's answer is malformed")

// messages reads netlink's messages, one after the other.
type messages struct {
	rest  []byte
	kind  uint16
	flags uint16
	seq   uint32
	body  []byte
	err   error
}

// next goes on to the next message, and reports whether there is one.
func (m *messages) next() bool {
	if len(m.rest) == 0 || m.err != nil {
		return false
	}
	size := 0
	if len(m.rest) >= unix.SizeofNlMsghdr {
		size = int(binary.NativeEndian.Uint32(m.rest))
	}
	if size < unix.SizeofNlMsghdr || size > len(m.rest) {
		m.err = errMalformed
		return false
	}
	m.kind, m.flags = binary.NativeEndian.Uint16(m.rest[4:]), binary.NativeEndian.Uint16(m.rest[6:])
	m.seq = binary.NativeEndian.Uint32(m.rest[8:])
	m.body = m.rest[unix.SizeofNlMsghdr:size]
	m.rest = m.rest[min(aligned(size), len(m.rest)):]
	return true
}

// errno is what an acknowledgement or the end of a list says; 0: no error.
func (m *messages) errno() (syscall.Errno, error) {
	if len(m.body) < 4 {
		if m.kind == unix.NLMSG_DONE {
			return 0, nil
		}
		return 0, errMalformed
	}
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(m.body))), nil
}

func aligned(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
