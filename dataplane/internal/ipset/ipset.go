package ipset

import (
	"cmp"
	"errors"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
)

// SetType is the kernel's name for a type of set.
type SetType string

// HashIPPortIP is a type of set whose elements consist of an address, a protocol and port, and a
// second address.
const HashIPPortIP SetType = "hash:ip,port,ip"

// MaxEntries is the maximum size of a set. The kernel uses memory only for existing elements.
const MaxEntries = 1 << 22

// Protocol is the number of an IP protocol.
type Protocol uint8

// These are the protocols with ports.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// ProtocolOf returns the number of a service's protocol.
func ProtocolOf(p balancer.Protocol) Protocol { return Protocol(p.Number()) }

// Element is an element of a set.
type Element struct {
	Addr  netip.Addr
	Proto Protocol
	Port  uint16
	// Second is the second address.
	Second netip.Addr
}

// Member is an element with its remaining lifetime.
type Member struct {
	Element
	// Left is the time until the element expires. Zero means that it never expires.
	Left time.Duration
}

// Compare orders elements by address, protocol, port and second address.
func (e Element) Compare(o Element) int {
	return cmp.Or(e.Addr.Compare(o.Addr), cmp.Compare(e.Proto, o.Proto), cmp.Compare(e.Port, o.Port), e.Second.Compare(o.Second))
}

// Header holds the properties of a set.
type Header struct {
	Kind   SetType
	Family inet.Family
	// Timed reports whether elements may have a timeout.
	Timed bool
	// Elements is the number of elements.
	Elements int
}

// These are the errors that callers test with errors.Is.
var (
	// ErrNotFound means that the set does not exist.
	ErrNotFound = errors.New("no such set")
	// ErrDifferent means that a set with that name exists, but with another type or family, or with
	// different support for timeouts.
	ErrDifferent = errors.New("a set with this name but a different type exists")
	// ErrInUse means that rules use the set.
	ErrInUse = errors.New("the set is in use by a rule")
	// ErrUnsupported means that the kernel does not support ipsets or this type of set.
	ErrUnsupported = errors.New("the kernel lacks this type of ipset: run modprobe -a ip_set ip_set_hash_ipportip xt_set")
)
