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

// received is more than the kernel puts into one answer, which is 32 KiB at most.
const received = 64 << 10

// ErrLost says that the kernel had more to say than there was room for: some answers are missing.
var ErrLost = errors.New("some of the kernel's answers were lost")

// Silence is how long the kernel may say nothing that owes an answer, which takes it milliseconds a message.
const Silence = 5 * time.Second

// Socket speaks with the kernel. It is for one goroutine at a time, but for Close and SetReadDeadline.
type Socket struct {
	// Patience is how long Answer waits; Silence, unless it is set.
	Patience time.Duration

	file *os.File
	raw  syscall.RawConn
	in   []byte
	seq  uint32
	// drain: Receive returns unix.EAGAIN instead of waiting.
	drain bool
	// read is called when there is something; n and err are what it got.
	read func(fd uintptr) bool
	n    int
	err  error
}

// Open opens a socket of one of netlink's protocols (unix.NETLINK_...) in the calling thread's network namespace.
func Open(protocol int) (*Socket, error) { return OpenAt(protocol, slices.Values([]uint32{0})) }

// OpenAt opens a socket whose address (Port) is the first of these that no other has; 0 means one that the kernel chooses.
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
	// Without this, refusals carry the refused message: slower, and no less right.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return Over(fd)
}

// Subscribe opens a socket to which the kernel tells what happens in some groups. It keeps room bytes of what was not received yet,
// where this process may have it do so.
func Subscribe(protocol, room int, groups ...int) (*Socket, error) {
	s, err := Open(protocol)
	if err != nil {
		return nil, err
	}
	failed := s.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, room) // as much as the host allows
		}
		for _, group := range groups {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
		}
	})
	if err = errors.Join(failed, err); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing to a group of %s: %w", name(protocol), err), s.Close())
	}
	return s, nil
}

// Filter has the kernel put only what a program lets through into the socket. What came before is there.
func (s *Socket) Filter(program []unix.SockFilter) (err error) {
	failed := s.Control(func(fd uintptr) {
		attached := &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, attached)
	})
	if err = errors.Join(failed, err); err != nil {
		return fmt.Errorf("filtering what the kernel tells: %w", err)
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

// Next is the number for the next message.
func (s *Socket) Next() uint32 {
	s.seq++
	return s.seq
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
	m, err := s.Within(s.Patience)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return m, fmt.Errorf("the kernel has not answered for %s", s.Patience)
	}
	return m, err
}

// Within is Receive for so long at most. What the kernel has said by then is received, also by a process that stood still longer.
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

// Refusals reads the answers to messages that were sent with the numbers first to last, of which the last is to be acknowledged:
// why the kernel refused each, a syscall.Errno, or nil. With ErrLost, nil may also mean that the answer was lost. Answers to earlier
// messages are passed over.
func (s *Socket) Refusals(first, last uint32) ([]error, error) {
	refusals := make([]error, last-first+1)
	lost := false
	for {
		m, err := s.Answer()
		switch {
		case errors.Is(err, unix.ENOBUFS): // the kernel worked off all messages while they were sent: whatever it has to say is there
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
			if errors.Is(refusals[i], unix.EPERM) { // netfilter answers no further message then
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
