package nlsock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// received is more than the kernel puts into one answer, which is 32 KiB at most.
const received = 64 << 10

// Silence is how long the kernel may say nothing that owes an answer, which takes it milliseconds a message.
const Silence = 5 * time.Second

// Socket speaks with the kernel. It is for one goroutine at a time, but for Close and SetReadDeadline.
type Socket struct {
	// Patience is how long Answer waits; Silence, unless it is set.
	Patience time.Duration

	file *os.File
	raw  syscall.RawConn
	in   []byte
	// drain: Receive returns unix.EAGAIN instead of waiting.
	drain bool
	// read is called when there is something; n and err are what it got.
	read func(fd uintptr) bool
	n    int
	err  error
}

// Open opens a socket of one of netlink's protocols (unix.NETLINK_...) in the calling thread's network namespace.
func Open(protocol int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("opening a %s socket: %w", name(protocol), err)
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connecting a %s socket to the kernel: %w", name(protocol), err)
	}
	// Without this, refusals carry the refused message: slower, and no less right.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return Over(fd)
}

func name(protocol int) string {
	switch protocol {
	case unix.NETLINK_GENERIC:
		return "generic netlink"
	case unix.NETLINK_NETFILTER:
		return "netfilter"
	}
	return "netlink"
}

// Over takes over fd, which is not to block.
func Over(fd int) (*Socket, error) {
	s := &Socket{file: os.NewFile(uintptr(fd), "netlink"), in: make([]byte, received), Patience: Silence}
	var err error
	if s.raw, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("waiting for a netlink socket: %w", err)
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

// Close closes the socket. Receive fails from then on; who is in the kernel with it is waited for.
func (s *Socket) Close() error { return s.file.Close() }

// Control calls f with the socket, for its options.
func (s *Socket) Control(f func(fd uintptr)) error { return s.raw.Control(f) }

// SetReadDeadline has Receive fail with os.ErrDeadlineExceeded from t on.
func (s *Socket) SetReadDeadline(t time.Time) error { return s.file.SetReadDeadline(t) }

// Drain has Receive return unix.EAGAIN from now on where there is nothing, instead of waiting.
func (s *Socket) Drain() { s.drain = true }

// Port is the socket's own address.
func (s *Socket) Port() (port uint32, err error) {
	failed := s.raw.Control(func(fd uintptr) {
		at, why := unix.Getsockname(int(fd))
		if at, ok := at.(*unix.SockaddrNetlink); ok {
			port = at.Pid
		}
		err = why
	})
	return port, errors.Join(failed, err)
}

// Discard reads what is there and was not received, so that it is not taken for the next answer.
func (s *Socket) Discard() {
	_ = s.raw.Control(func(fd uintptr) {
		var b [4096]byte
		for {
			_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT)
			if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
				return
			}
		}
	})
}

// Send sends messages, one behind the other.
func (s *Socket) Send(b []byte) error {
	var err error
	waiting := s.raw.Write(func(fd uintptr) bool {
		for {
			if _, err = unix.Write(int(fd), b); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	return errors.Join(waiting, err)
}

// Receive waits for messages, which are valid until it is called again. unix.ENOBUFS says that the kernel had more to say
// than there was room for.
func (s *Socket) Receive() (Messages, error) {
	if err := s.raw.Read(s.read); err != nil {
		return Messages{}, err
	}
	if s.err != nil {
		return Messages{}, s.err
	}
	return Read(s.in[:s.n]), nil
}

// Answer is Receive where the kernel owes an answer: it waits no longer than Patience. What comes later is still received: who asks
// again numbers the questions, or discards it.
func (s *Socket) Answer() (Messages, error) {
	if err := s.SetReadDeadline(time.Now().Add(s.Patience)); err != nil {
		return Messages{}, err
	}
	m, err := s.Receive()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return m, fmt.Errorf("the kernel has not answered for %s", s.Patience)
	}
	return m, err
}
