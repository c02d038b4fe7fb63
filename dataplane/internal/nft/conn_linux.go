package nft

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// Conn commits transactions to nf_tables, and reads what is there, in the network namespace that it was opened in. It is for
// one goroutine at a time.
type Conn struct {
	sock *nlsock.Socket
	room int // bytes that the socket takes at once
	hear int // bytes that it keeps until they are read
	seq  uint32
	// commits counts the transactions that had an effect.
	commits uint32
	// events: nil means that Listen was not called.
	events *events
}

// Open opens a connection.
func Open() (*Conn, error) {
	s, err := openOwn()
	if err != nil {
		return nil, err
	}
	c := &Conn{sock: s, seq: 1}
	err = s.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1) // for its texts alone
		c.room, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
		c.hear, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("preparing a netfilter socket: %w", err), s.Close())
	}
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() error {
	if c.events != nil {
		return errors.Join(c.events.sock.Close(), c.sock.Close())
	}
	return c.sock.Close()
}

// Error is the kernel's refusal of a transaction, which had no effect.
type Error struct {
	// Step is the refused command in nft's words, cut where it is long; empty where the kernel named none.
	Step string
	// Detail is the kernel's own explanation, often empty.
	Detail string
	// Errno is the reason.
	Errno syscall.Errno
}

// Error says what was refused and why.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("nf_tables refused")
	if e.Step != "" {
		fmt.Fprintf(&b, " %q", e.Step)
	}
	fmt.Fprintf(&b, ": %v", e.Errno)
	if e.Detail != "" {
		fmt.Fprintf(&b, " (%s)", e.Detail)
	}
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Errno }

// echoed is more than the kernel takes of a socket's room for one element that it sends back.
const echoed = 1 << 10

// Commit applies the transaction, and fills in its Deleted, unless that is more than the socket may hold: without the right
// to pass the limit of the system, some 400 elements. An error of type *Error names the first step that was refused.
func (c *Conn) Commit(t *Tx) error {
	if t.Len() == 0 {
		return nil
	}
	c.sock.Discard()
	heard := min(echoed*t.counting(), math.MaxInt32/2)
	if err := c.grow(&c.hear, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, heard); err != nil {
		return err
	}
	from := c.seq
	b, steps := t.encode(from, heard <= c.hear)
	t.Bytes, t.Deleted = len(b), nil
	c.seq += uint32(len(steps))
	if err := c.grow(&c.room, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, len(b)+1024); err != nil {
		return err
	}
	if err := c.sock.Send(b); err != nil {
		return fmt.Errorf("sending a transaction of %d bytes to nf_tables: %w", len(b), err)
	}
	last := from + uint32(len(steps)) - 2 // before the end of the batch: acknowledged
	refused, err := c.answers(last, t)
	if err == nil && refused == nil {
		c.commits++
	}
	if err != nil || refused == nil {
		return err
	}
	if at := int(refused.seq - from); at >= 0 && at < len(steps) && steps[at] >= 0 {
		refused.Step = clip(t.ops[steps[at]].String())
	}
	return &refused.Error
}

func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// refusal is an error with the number of the message that it is about.
type refusal struct {
	Error
	seq uint32
}

// answers waits for the acknowledgement of message last, or the first refusal. What is echoed comes before.
func (c *Conn) answers(last uint32, t *Tx) (*refusal, error) {
	for {
		m, err := c.sock.Answer()
		if errors.Is(err, unix.ENOBUFS) {
			continue // more refusals than there is room for: the first ones are there
		}
		if err != nil {
			return nil, fmt.Errorf("waiting for nf_tables: %w", err)
		}
		for m.Next() {
			if m.Kind == subsystem<<8|msgDelSetElem && len(m.Body) >= 4 {
				t.Deleted = append(t.Deleted, elementsIn(m.Body[4:])...)
			}
			if m.Kind != unix.NLMSG_ERROR {
				continue
			}
			var errno syscall.Errno
			switch err := m.Refusal(); {
			case errors.As(err, &errno):
				return &refusal{Error{Detail: detail(&m), Errno: errno}, m.Seq}, nil
			case err != nil:
				return nil, err
			case m.Seq == last:
				return nil, nil
			}
		}
		if m.Err != nil {
			return nil, m.Err
		}
	}
}

// detail is the text of an extended acknowledgement.
func detail(m *nlsock.Messages) string {
	const header = 4 + unix.SizeofNlMsghdr // the error, and the header of the refused message
	if len(m.Body) < header || m.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	for a := nlsock.In(m.Body[header:]); a.Next(); {
		if a.Kind == unix.NLMSGERR_ATTR_MSG {
			return strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return ""
}

// grow makes one of the socket's buffers take n bytes, and notes how many it takes: a transaction is sent at once. Without the right
// to pass the limit of the system (a user namespace) that is 2 x net.core.wmem_max or rmem_max.
func (c *Conn) grow(room *int, force, plain, n int) (err error) {
	if n <= *room {
		return nil
	}
	controlled := c.sock.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, force, n) != nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, plain, n)
		}
		*room, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, plain)
	})
	return errors.Join(controlled, err)
}

// Generation is the number of the last transaction in this namespace, by whomever.
func (c *Conn) Generation() (id uint32, err error) {
	err = c.list(msgGetGen, 0, false, nil, func(body []byte) {
		for a := nlsock.In(body); a.Next(); {
			if a.Kind == genID {
				id = number(a.Value)
			}
		}
	})
	return id, err
}
