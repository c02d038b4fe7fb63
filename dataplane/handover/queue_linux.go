package handover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxMessage is the maximum size of a message. A message contains the description of a
	// connection, and its buffered bytes in each direction.
	maxMessage = 256 << 10
	// queueSize is the size of the kernel's buffer for unread messages. It is large enough for
	// several hundred thousand connections.
	queueSize = 1 << 30
	// sendTime is how long Send waits for space in the buffer.
	sendTime = 5 * time.Second
)

// Queue is one end of a connection that transfers Items. Send is safe for concurrent use. Calls to
// Receive must not overlap.
type Queue struct {
	conn *net.UnixConn
	buf  []byte
}

// Pair returns the two ends of a queue. Items sent to out remain in the kernel until they are
// received from in.
func Pair() (in, out *Queue, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a queue for the next process: %w", err)
	}
	if unix.SetsockoptInt(ends[1], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, queueSize) != nil { // needs CAP_NET_ADMIN
		_ = unix.SetsockoptInt(ends[1], unix.SOL_SOCKET, unix.SO_SNDBUF, queueSize) // the kernel limits the size for an unprivileged user
	}
	in, err = FromFile(os.NewFile(uintptr(ends[0]), "handover"))
	out, err2 := FromFile(os.NewFile(uintptr(ends[1]), "handover"))
	if err = errors.Join(err, err2); err != nil {
		_, _ = in.Close(), out.Close()
		return nil, nil, err
	}
	return in, out, nil
}

// FromFile returns the queue whose end is file's descriptor, and closes file.
func FromFile(file *os.File) (*Queue, error) {
	c, err := net.FileConn(file)
	_ = file.Close() // FileConn duplicates the descriptor
	if err != nil {
		return nil, fmt.Errorf("opening a queue: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("opening a queue: the descriptor is a %s, not a Unix socket", c.LocalAddr().Network())
	}
	return &Queue{conn: u}, nil
}

// Over returns a queue that uses a SOCK_SEQPACKET connection ("unixpacket" in package net).
func Over(c *net.UnixConn) *Queue { return &Queue{conn: c} }

// File returns a duplicate of this end's file descriptor.
func (q *Queue) File() (*os.File, error) { return q.conn.File() }

// Abandoned reports whether no process has the other end open.
func (q *Queue) Abandoned() (abandoned bool) {
	raw, err := q.conn.SyscallConn()
	if err != nil {
		return true
	}
	_ = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}} // poll always reports POLLHUP
		_, err := unix.Poll(poll, 0)
		abandoned = err == nil && poll[0].Revents&unix.POLLHUP != 0
	})
	return abandoned
}

// Send sends an item. It does not close the sender's descriptors. The caller may close them after
// Send returns.
func (q *Queue) Send(data []byte, files ...int) error {
	if err := q.conn.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return fmt.Errorf("handing over: %w", err)
	}
	_, _, err := q.conn.WriteMsgUnix(data, unix.UnixRights(files...), nil)
	if err != nil {
		return fmt.Errorf("handing over: %w", err)
	}
	return nil
}

// Receive returns the next item. It returns io.EOF after the last item.
func (q *Queue) Receive() (Item, error) {
	if q.buf == nil {
		q.buf = make([]byte, maxMessage)
	}
	control := make([]byte, unix.CmsgSpace(253*4)) // SCM_MAX_FD
	n, c, flags, _, err := q.conn.ReadMsgUnix(q.buf, control)
	if err != nil {
		return Item{}, err
	}
	if n == 0 && c == 0 { // an empty message means that the sender has closed its end
		return Item{}, io.EOF
	}
	item := Item{Data: bytes.Clone(q.buf[:n])}
	messages, err := unix.ParseSocketControlMessage(control[:c])
	for i := range messages {
		files, err2 := unix.ParseUnixRights(&messages[i])
		item.Files, err = append(item.Files, files...), errors.Join(err, err2)
	}
	if err == nil && flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		err = errors.New("part of it is lost: this process might have too few file descriptors (raise LimitNOFILE)")
	}
	if err != nil {
		item.Close()
		return Item{}, fmt.Errorf("taking over: %w", err)
	}
	return item, nil
}

// All receives items until the sender closes its end, and then closes the queue.
func (q *Queue) All() (items []Item, err error) {
	defer func() { _ = q.Close() }()
	for {
		item, err := q.Receive()
		switch {
		case errors.Is(err, io.EOF):
			return items, nil
		case err != nil:
			return items, err
		}
		items = append(items, item)
	}
}

// Close closes this end. The other end can still receive items that have already been sent.
func (q *Queue) Close() error {
	if q == nil {
		return nil
	}
	return q.conn.Close()
}

// Close closes the unused descriptors of an item. It resets TCP connections, because a truncated
// connection must not look complete.
func (i Item) Close() {
	for _, fd := range i.Files {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // fails for descriptors other than sockets
		_ = unix.Close(fd)
	}
}
