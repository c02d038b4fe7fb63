package nlsock

import (
	"encoding/binary"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrMalformed says that a message does not have the form that the kernel documents.
var ErrMalformed = errors.New("the kernel's message is malformed")

// Messages reads netlink's messages, one after the other.
type Messages struct {
	rest []byte
	// Kind, Flags and Seq are the header's: the type, unix.NLM_F_..., and the number of the question.
	Kind  uint16
	Flags uint16
	Seq   uint32
	// Body is what follows the header.
	Body []byte
	// Err is ErrMalformed after a message that could not be read; Next reports false then.
	Err error
}

// Read reads what came from a socket.
func Read(b []byte) Messages { return Messages{rest: b} }

// Empty reports whether there is nothing left.
func (m *Messages) Empty() bool { return len(m.rest) == 0 }

// Next goes on to the next message, and reports whether there is one.
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

// Refusal is what an acknowledgement or the end of a list says (unix.NLMSG_ERROR, unix.NLMSG_DONE): a syscall.Errno; nil:
// it was done. ErrMalformed: nothing.
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

// Attributes reads a list of attributes, one after the other.
type Attributes struct {
	rest []byte
	// Kind is the type, without the flags for nests and byte order.
	Kind  uint16
	Value []byte
	// Err is ErrMalformed after an attribute that could not be read, or the error of a reader of values; Next reports
	// false then.
	Err error
}

// In reads the attributes in b.
func In(b []byte) Attributes { return Attributes{rest: b} }

// Rest is what was not read yet.
func (a *Attributes) Rest() []byte { return a.rest }

// Next goes on to the next attribute, and reports whether there is one.
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

// aligned is where the next begins: messages and attributes begin at multiples of 4.
func aligned(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
