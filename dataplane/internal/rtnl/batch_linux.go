package rtnl

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// BatchSize is the number of messages for each system call. The smallest socket buffer can hold the
// kernel's answers, even if the kernel refuses all messages.
const BatchSize = 64

// Batches is a socket for many changes to addresses and routes. The kernel applies all messages in
// a system call, and reports only refusals and the result of the last message. Sending messages one
// by one would need two system calls for each message, and the library would double the time.
type Batches struct {
	*nlsock.Socket
	out nlsock.Writer
}

// Open opens a socket in the calling thread's network namespace.
func Open() (*Batches, error) {
	s, err := nlsock.Open(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &Batches{Socket: s}, nil
}

// Message is an rtnetlink request: its type, its flags in addition to NLM_F_REQUEST, and its body.
type Message struct {
	Kind, Flags uint16
	Body        []byte
}

// Do applies messages in order, and continues after a failure. It returns an error or nil for each
// message.
func (b *Batches) Do(messages []Message) []error {
	errs := make([]error, 0, len(messages))
	for part := range slices.Chunk(messages, BatchSize) {
		errs = append(errs, b.doSome(part)...)
	}
	return errs
}

// doSome applies messages in a single system call.
func (b *Batches) doSome(messages []Message) []error {
	b.out.B = b.out.B[:0]
	var last uint32
	for _, m := range messages {
		last = b.Next()
		b.out.Begin(m.Kind, m.Flags, last, m.Body...) // a body's length is a multiple of 4
		b.out.End()
	}
	b.out.Ask()
	err := b.Send(b.out.B)
	var errs []error
	if err == nil {
		errs, err = b.Refusals(last-uint32(len(messages))+1, last)
	}
	if err != nil { // the kernel's progress is unknown, but repeating a completed message is not an error
		errs = slices.Repeat([]error{err}, len(messages))
	}
	return errs
}

// NewAddress returns a message that adds a VIP to a device. The kernel never chooses the VIP as the
// source of the host's own connections, even if it is the device's first address. For IPv4, the
// scope RT_SCOPE_HOST prevents this, and for IPv6, the lifetimes do. Neither affects the kernel's
// answers to ARP and NDP.
func NewAddress(a netip.Addr, device int) Message {
	flags, scope := byte(0), byte(unix.RT_SCOPE_HOST)
	if a.Is6() {
		flags, scope = unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE
	}
	body := address(a, device, flags, scope)
	if a.Is6() {
		lifetimes := make([]byte, 16)                            // ifa_cacheinfo: never preferred,
		binary.NativeEndian.PutUint32(lifetimes[4:], ^uint32(0)) // valid forever
		body.Bytes(unix.IFA_CACHEINFO, lifetimes...)
	}
	return Message{unix.RTM_NEWADDR, unix.NLM_F_CREATE | unix.NLM_F_EXCL, body.B}
}

// DropAddress returns a message that removes an address from a device.
func DropAddress(a netip.Addr, device int) Message {
	return Message{unix.RTM_DELADDR, 0, address(a, device, 0, 0).B}
}

// address returns an ifaddrmsg for an address on a device.
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

// LocalRoute returns a message that adds or removes a local route to an address through a device.
// If source is invalid, a new route has no source, and a removed route may have any source.
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
