package nlsock

import (
	"encoding/binary"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrMalformed means that a message violates its documented format.
var ErrMalformed = errors.New("the kernel's message is malformed")

// Messages reads a sequence of netlink messages.
type Messages struct {
	rest []byte
	// Kind, Flags and Seq are fields of the header: the type, the flags (unix.NLM_F_...), and the
	// sequence number of the request.
	Kind  uint16
	Flags uint16
	Seq   uint32
	// Body is the message without the header.
	Body []byte
	// Err is ErrMalformed if a message could not be parsed. Next then returns false.
	Err error
}

// Read returns a reader for messages that a socket has received.
func Read(b []byte) Messages { return Messages{rest: b} }

// Empty reports whether no data is left.
func (m *Messages) Empty() bool { return len(m.rest) == 0 }

// Next moves to the next message, and reports whether it exists.
func (m *Messages) Next() bool {
	if len(m.rest) == 0 || m.Err != nil {
		return false
	}
	size := 0
	if len(m.rest) >= unix.SizeofNlMsghdr {
		size = int(binary.NativeEndian.Uint32(m.rest))
	}
	if size < unix.SizeofNlMsghdr || size > len(m.rest) {
		m.Err = ErrMalformed
		return false
	}
	m.Kind, m.Flags = binary.NativeEndian.Uint16(m.rest[4:]), binary.NativeEndian.Uint16(m.rest[6:])
	m.Seq = binary.NativeEndian.Uint32(m.rest[8:])
	m.Body = m.rest[unix.SizeofNlMsghdr:size]
	m.rest = m.rest[min(aligned(size), len(m.rest)):]
	return true
}

// Refusal returns the result that an acknowledgement or the end of a list contains
// (unix.NLMSG_ERROR, unix.NLMSG_DONE). The result is a syscall.Errno, nil for success, or
// ErrMalformed.
func (m *Messages) Refusal() error {
	if len(m.Body) < 4 {
		if m.Kind == unix.NLMSG_DONE {
			return nil
		}
		return ErrMalformed
	}
	if n := int32(binary.NativeEndian.Uint32(m.Body)); n != 0 {
		return syscall.Errno(-n)
	}
	return nil
}

// Attributes reads a sequence of attributes.
type Attributes struct {
	rest []byte
	// Kind is the type, without the flags for nesting and byte order.
	Kind  uint16
	Value []byte
	// Err is ErrMalformed if an attribute could not be parsed, or an error from reading a value.
	// Next then returns false.
	Err error
}

// In returns a reader for the attributes in b.
func In(b []byte) Attributes { return Attributes{rest: b} }

// Rest returns the unread data.
func (a *Attributes) Rest() []byte { return a.rest }

// Next moves to the next attribute, and reports whether it exists.
func (a *Attributes) Next() bool {
	if len(a.rest) == 0 || a.Err != nil {
		return false
	}
	size := 0
	if len(a.rest) >= unix.SizeofNlAttr {
		size = int(binary.NativeEndian.Uint16(a.rest))
	}
	if size < unix.SizeofNlAttr || size > len(a.rest) {
		a.Err = ErrMalformed
		return false
	}
	a.Kind = binary.NativeEndian.Uint16(a.rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	a.Value = a.rest[unix.SizeofNlAttr:size]
	a.rest = a.rest[min(aligned(size), len(a.rest)):]
	return true
}

// aligned rounds an offset up to the start of the next message or attribute, which is a multiple of
// 4.
func aligned(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
