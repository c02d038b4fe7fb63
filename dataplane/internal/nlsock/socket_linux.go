package nlsock

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// received is the size of the read buffer. It exceeds the maximum size of an answer from the
// kernel, which is 32 KiB.
const received = 64 << 10

// ErrLost means that some answers were lost because the buffer was full.
var ErrLost = errors.New("some of the kernel's answers were lost")

// Silence is the default of Socket.Patience. Usually the kernel answers within milliseconds.
const Silence = 5 * time.Second

// Socket is a netlink socket. Except for Close and SetReadDeadline, calls to its methods must not
// overlap.
type Socket struct {
	// Patience is how long Answer waits. The default is Silence.
	Patience time.Duration

	file *os.File
	raw  syscall.RawConn
	in   []byte
	seq  uint32
	// drain reports whether Receive returns unix.EAGAIN instead of waiting.
	drain bool
	read  func(fd uintptr) bool
	n     int
	err   error
}

// Open opens a socket of one of netlink's protocols (unix.NETLINK_...) in the calling thread's
// network namespace.
func Open(protocol int) (*Socket, error) { return OpenAt(protocol, slices.Values([]uint32{0})) }

// OpenAt opens a socket with the first unused address (Port) of ports. The address 0 lets the
// kernel choose.
func OpenAt(protocol int, ports iter.Seq[uint32]) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("opening a %s socket: %w", name(protocol), err)
	}
	for port := range ports {
		if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != unix.EADDRINUSE {
			break
		}
	}
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connecting a %s socket to the kernel: %w", name(protocol), err)
	}
	// Without this option, a refusal contains the refused message, which is slower.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return Over(fd)
}

// Subscribe opens a socket that receives the kernel's events for these groups. room is the size of
// its buffer in bytes. If this process lacks the privilege for that size, the buffer is smaller.
func Subscribe(protocol, room int, groups ...int) (*Socket, error) {
	s, err := Open(protocol)
	if err != nil {
		return nil, err
	}
	failed := s.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, room) // limited by the host's maximum
		}
		for _, group := range groups {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
		}
	})
	if err = errors.Join(failed, err); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing to a %s group: %w", name(protocol), err), s.Close())
	}
	return s, nil
}

// Filter restricts the socket to messages that a BPF program accepts. It does not affect messages
// that have already been received.
func (s *Socket) Filter(program []unix.SockFilter) (err error) {
	failed := s.Control(func(fd uintptr) {
		attached := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, attached)
	})
	if err = errors.Join(failed, err); err != nil {
		return fmt.Errorf("filtering the kernel's messages: %w", err)
	}
	return nil
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

// Over returns a Socket that owns fd, which must be non-blocking.
func Over(fd int) (*Socket, error) {
	s := &Socket{file: os.NewFile(uintptr(fd), "netlink"), in: make([]byte, received), Patience: Silence}
	var err error
	if s.raw, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("preparing a netlink socket: %w", err)
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

// Close closes the socket once pending system calls have returned. Later calls to Receive fail.
func (s *Socket) Close() error { return s.file.Close() }

// Control calls f with the socket's descriptor, to set options.
func (s *Socket) Control(f func(fd uintptr)) error { return s.raw.Control(f) }

// SetReadDeadline makes Receive fail with os.ErrDeadlineExceeded after t.
func (s *Socket) SetReadDeadline(t time.Time) error { return s.file.SetReadDeadline(t) }

// Drain makes Receive return unix.EAGAIN instead of waiting.
func (s *Socket) Drain() { s.drain = true }

// Port returns the socket's netlink address.
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

// Discard discards received messages. They would otherwise be mistaken for the next answer.
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

// Next returns the sequence number for the next message.
func (s *Socket) Next() uint32 {
	s.seq++
	return s.seq
}

// Send sends a sequence of messages.
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

// Receive waits for messages. They are valid until the next call. unix.ENOBUFS means that the
// kernel dropped messages because the buffer was full.
func (s *Socket) Receive() (Messages, error) {
	if err := s.raw.Read(s.read); err != nil {
		return Messages{}, err
	}
	if s.err != nil {
		return Messages{}, s.err
	}
	return Read(s.in[:s.n]), nil
}

// Answer is like Receive, but waits no longer than Patience. A late answer stays in the socket, so
// the caller must number its requests or discard late answers.
func (s *Socket) Answer() (Messages, error) {
	m, err := s.Within(s.Patience)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return m, fmt.Errorf("the kernel has not answered for %s", s.Patience)
	}
	return m, err
}

// Within is like Receive, but has a time limit. It returns messages that arrived in time even if
// this process did not run in time.
func (s *Socket) Within(patience time.Duration) (Messages, error) {
	if err := s.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return Messages{}, err
	}
	m, err := s.Receive()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return m, err
	}
	if failed := s.raw.Control(func(fd uintptr) { s.read(fd) }); failed != nil || s.err == unix.EAGAIN {
		return m, err
	}
	if s.err != nil {
		return m, s.err
	}
	return Read(s.in[:s.n]), nil
}

// Refusals reads the answers to the messages with the numbers first to last. The last message must
// have requested an acknowledgement. For each message, Refusals returns the kernel's refusal as a
// syscall.Errno, or nil. If it also returns ErrLost, nil may mean that the answer was lost. It
// skips answers to earlier messages.
func (s *Socket) Refusals(first, last uint32) ([]error, error) {
	refusals := make([]error, last-first+1)
	lost := false
	for {
		m, err := s.Answer()
		switch {
		case errors.Is(err, unix.ENOBUFS): // the kernel processes messages during the send call, so it has sent all answers
			lost, s.drain = true, true
			continue
		case lost && errors.Is(err, unix.EAGAIN):
			s.drain = false
			return refusals, ErrLost
		case err != nil:
			return nil, err
		}
		for m.Next() {
			i := m.Seq - first
			if i >= uint32(len(refusals)) {
				continue
			}
			if m.Kind != unix.NLMSG_ERROR {
				return nil, ErrMalformed
			}
			refusals[i] = m.Refusal()
			if errors.Is(refusals[i], unix.EPERM) { // netfilter then does not answer later messages
				for j := i; j < uint32(len(refusals)); j++ {
					refusals[j] = refusals[i]
				}
				s.Discard()
				return refusals, nil
			}
			if m.Seq == last && !lost {
				return refusals, nil
			}
		}
		if m.Err != nil {
			return nil, m.Err
		}
	}
}
