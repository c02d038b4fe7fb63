package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// BatchSize is how many messages go out at once. The kernel's answers to as many have room in the smallest buffer of a
// socket, even where it refuses all of them.
const BatchSize = 64

// Batches is a socket for many addresses and routes at once: the kernel carries out all messages of one system call, and
// answers only what it refuses, and the last. One by one each takes two calls, and the library as much time again.
type Batches struct {
	fd  int
	seq uint32
	buf []byte
}

func Open() (*Batches, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for batches: %w", err)
	}
	return &Batches{fd: fd, buf: make([]byte, 64<<10)}, nil
}

func (b *Batches) Close() error { return unix.Close(b.fd) }

// Message is a request of rtnetlink: its type, its flags beside NLM_F_REQUEST, and what follows the header.
type Message struct {
	Kind, Flags uint16
	Body        []byte
}

// Do carries out messages in their order, also those after one that fails. It returns an error or nil for each.
func (b *Batches) Do(messages []Message) []error {
	errs := make([]error, 0, len(messages))
	for part := range slices.Chunk(messages, BatchSize) {
		errs = append(errs, b.doSome(part)...)
	}
	return errs
}

// doSome is Do for one system call.
func (b *Batches) doSome(messages []Message) []error {
	errs := make([]error, len(messages))
	first := b.seq + 1
	out := nlsock.Writer{B: b.buf[:0]}
	for i, m := range messages {
		flags := m.Flags
		if i == len(messages)-1 {
			flags |= unix.NLM_F_ACK
		}
		b.seq++
		out.Begin(m.Kind, flags, b.seq, m.Body...) // bodies end at multiples of 4
		out.End()
	}
	err := unix.Sendto(b.fd, out.B, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for answered := false; err == nil && !answered; {
		answered, err = b.answers(first, errs)
	}
	if err != nil { // how far the kernel came is unknown; what is done already is no error when it is done again
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

// answers reads some answers to messages that are numbered from first on, and reports whether the last was among them.
func (b *Batches) answers(first uint32, errs []error) (last bool, err error) {
	n, _, err := unix.Recvfrom(b.fd, b.buf, 0)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for m := nlsock.Read(b.buf[:n]); ; {
		if !m.Next() {
			return last, m.Err
		}
		i := int(m.Seq - first)
		if m.Kind != unix.NLMSG_ERROR || i < 0 || i >= len(errs) {
			continue // left of a call that failed
		}
		errs[i] = m.Refusal()
		last = last || i == len(errs)-1
	}
}

// NewAddress adds an address to a device. One of the scope RT_SCOPE_HOST is never taken by the kernel for the source of other
// connections; IPv6 has lifetimes for that.
func NewAddress(a netip.Addr, device int, scope byte) Message {
	flags := byte(0)
	if a.Is6() {
		flags, scope = unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE
	}
	body := address(a, device, flags, scope)
	if a.Is6() {
		lifetimes := make([]byte, 16)                            // ifa_cacheinfo: preferred for no time,
		binary.NativeEndian.PutUint32(lifetimes[4:], ^uint32(0)) // valid for ever
		body.Bytes(unix.IFA_CACHEINFO, lifetimes...)
	}
	return Message{unix.RTM_NEWADDR, unix.NLM_F_CREATE | unix.NLM_F_EXCL, body.B}
}

// DropAddress takes an address from a device.
func DropAddress(a netip.Addr, device int) Message {
	return Message{unix.RTM_DELADDR, 0, address(a, device, 0, 0).B}
}

// address is an ifaddrmsg about an address on a device.
func address(a netip.Addr, device int, flags, scope byte) *nlsock.Writer {
	family := byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	body := &nlsock.Writer{B: binary.NativeEndian.AppendUint32([]byte{family, byte(a.BitLen()), flags, scope}, uint32(device))}
	body.Addr(unix.IFA_LOCAL, a)
	body.Addr(unix.IFA_ADDRESS, a)
	return body
}

// LocalRoute is a message about a local route to an address through a device. Without a source it has none, or any.
func LocalRoute(kind, flags uint16, a, source netip.Addr, device int, protocol byte) Message {
	family, scope := byte(unix.AF_INET), byte(unix.RT_SCOPE_HOST)
	if a.Is6() {
		family, scope = unix.AF_INET6, unix.RT_SCOPE_UNIVERSE
	}
	body := nlsock.Writer{B: []byte{family, byte(a.BitLen()), 0, 0, unix.RT_TABLE_LOCAL, protocol, scope, unix.RTN_LOCAL, 0, 0, 0, 0}} // rtmsg
	body.Addr(unix.RTA_DST, a)
	body.Native32(unix.RTA_OIF, uint32(device))
	if source.IsValid() {
		body.Addr(unix.RTA_PREFSRC, source)
	}
	return Message{kind, flags, body.B}
}
