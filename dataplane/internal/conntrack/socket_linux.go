package conntrack

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// bufferSize is more than the kernel puts into one answer, which is 32 KiB at most.
const bufferSize = 64 << 10

// socket speaks to the kernel's netfilter. It is for one goroutine at a time, but for close.
type socket struct {
	file *os.File
	raw  syscall.RawConn
	seq  uint32
	buf  []byte
	// read is called when there is something; n and err are what it got.
	read func(fd uintptr) bool
	n    int
	err  error
}

func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netfilter socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connecting a netfilter socket to the kernel: %w", err)
	}
	// Errors come without the message that they are about, from Linux 4.3 on; they are told by number.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return newSocket(fd)
}

// newSocket takes fd over, which is not to block.
func newSocket(fd int) (*socket, error) {
	s := &socket{file: os.NewFile(uintptr(fd), "netfilter"), buf: make([]byte, bufferSize)}
	var err error
	if s.raw, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("waiting for a netfilter socket: %w", err)
	}
	s.read = func(fd uintptr) bool {
		for {
			if s.n, s.err = unix.Read(int(fd), s.buf); s.err != unix.EINTR {
				return s.err != unix.EAGAIN
			}
		}
	}
	return s, nil
}

func (s *socket) close() error { return s.file.Close() }

// next is the number for the next message.
func (s *socket) next() uint32 {
	s.seq++
	return s.seq
}

func (s *socket) send(b []byte) error {
	var err error
	waiting := s.raw.Write(func(fd uintptr) bool {
		for {
			if _, err = unix.Write(int(fd), b); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if waiting != nil {
		return waiting
	}
	return err
}

// receive waits for messages, which are valid until it is called again.
func (s *socket) receive() (messages, error) {
	if err := s.raw.Read(s.read); err != nil {
		return messages{}, err
	}
	if s.err != nil {
		return messages{}, s.err
	}
	return messages{rest: s.buf[:s.n]}, nil
}

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

// errno is what an acknowledgement or the end of a list says; nil: no error.
func (m *messages) errno() error {
	if len(m.body) < 4 {
		if m.kind == unix.NLMSG_DONE {
			return nil
		}
		return errMalformed
	}
	if n := int32(binary.NativeEndian.Uint32(m.body)); n != 0 {
		return unix.Errno(-n)
	}
	return nil
}
