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

// Conn commits transactions to nf_tables and reads its state, in the network namespace in which it
// was opened. Calls to its methods must not overlap.
type Conn struct {
	sock          *nlsock.Socket
	room          int // size of the socket's send buffer
	receiveBuffer int // size of the socket's receive buffer
	seq           uint32
	// commits counts the transactions that took effect.
	commits uint32
	// events is nil before Listen.
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
		_ = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1) // on failure, only the kernel's explanations are missing
		c.room, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
		c.receiveBuffer, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
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

// Error is the error for a transaction that the kernel refused. The transaction had no effect.
type Error struct {
	// Step is the refused command in nft syntax, shortened if necessary. It is empty if the kernel
	// did not name a command.
	Step string
	// Detail is the kernel's explanation, which is often empty.
	Detail string
	// Errno is the reason.
	Errno syscall.Errno
}

// Error returns the refused step and the reason.
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

// echoed is the maximum space in a socket's buffer for an element that the kernel returns.
const echoed = 1 << 10

// Commit commits the transaction, and sets its Deleted. If the socket's buffer may be too small for
// the deleted elements, Deleted stays empty. Without the privilege to exceed the system's limit,
// the buffer holds about 400 elements. An error of type *Error names the first refused step.
func (c *Conn) Commit(t *Tx) error {
	if t.Len() == 0 {
		return nil
	}
	c.sock.Discard()
	heard := min(echoed*t.counting(), math.MaxInt32/2)
	if err := c.grow(&c.receiveBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, heard); err != nil {
		return err
	}
	from := c.seq
	b, steps := t.encode(from, heard <= c.receiveBuffer)
	t.Bytes, t.Deleted = len(b), nil
	c.seq += uint32(len(steps))
	if err := c.grow(&c.room, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, len(b)+1024); err != nil {
		return err
	}
	if err := c.sock.Send(b); err != nil {
		return fmt.Errorf("sending a transaction of %d bytes to nf_tables: %w", len(b), err)
	}
	last := from + uint32(len(steps)) - 2 // the kernel acknowledges the last message before the end of the batch
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

// refusal is a kernel error and the sequence number of the refused message.
type refusal struct {
	Error
	seq uint32
}

// answers waits for the acknowledgement of message last or for the first refusal. In the meantime,
// it processes echoed elements.
func (c *Conn) answers(last uint32, t *Tx) (*refusal, error) {
	for {
		m, err := c.sock.Answer()
		if errors.Is(err, unix.ENOBUFS) {
			continue // the buffer has overflowed, but still holds the first refusals
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

// detail returns the text of an extended acknowledgement.
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

// grow enlarges a socket buffer to at least n bytes, because it must hold a whole transaction. It
// stores the new size in room. Without the privilege to exceed the system's limit (in a user
// namespace), the size is at most twice net.core.wmem_max or rmem_max.
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

// Generation returns the number of the last transaction in this network namespace, whichever
// program made it.
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
