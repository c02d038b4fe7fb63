package ipset

import (
	"cmp"
	"errors"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
)

// SetType is a kind of set, by the kernel's name for it.
type SetType string

// HashIPPortIP holds addresses with protocol, port and a second address.
const HashIPPortIP SetType = "hash:ip,port,ip"

// MaxEntries bounds a set. The kernel takes memory for what is in it, not for what could be.
const MaxEntries = 1 << 22

// Protocol is an IP protocol by its number.
type Protocol uint8

// The protocols with ports.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// ProtocolOf returns the number of a protocol of services.
func ProtocolOf(p balancer.Protocol) Protocol { return Protocol(p.Number()) }

// Element is a member of a set.
type Element struct {
	Addr  netip.Addr
	Proto Protocol
	Port  uint16
	// Second is the second address.
	Second netip.Addr
}

// Member is an entry that is in a set.
type Member struct {
	Element
	// Left is how long it stays; 0 means forever.
	Left time.Duration
}

// Compare orders entries by address, protocol, port and second address.
func (e Element) Compare(o Element) int {
	return cmp.Or(e.Addr.Compare(o.Addr), cmp.Compare(e.Proto, o.Proto), cmp.Compare(e.Port, o.Port), e.Second.Compare(o.Second))
}

// Header is what a set says of itself.
type Header struct {
	Kind   SetType
	Family inet.Family
	// Timed: entries may be added for a time only.
	Timed bool
	// Elements is the number of entries.
	Elements int
}

// The errors that callers ask for, with errors.Is.
var (
	// ErrNotFound: there is no such set.
	ErrNotFound = errors.New("no such set")
	// ErrDifferent: there is a set of that name and another kind or family, or only one of the two is timed.
	ErrDifferent = errors.New("a set of this name and another kind exists")
	// ErrInUse: rules refer to the set.
	ErrInUse = errors.New("the set is in use by a rule")
	// ErrUnsupported: the kernel has no ipsets, or not of this kind.
	ErrUnsupported = errors.New("the kernel lacks ipsets of this kind: modprobe ip_set ip_set_hash_ipportip xt_set")
)
