package ipset

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/inet"
)

// Kind is a kind of set, by the kernel's name for it.
type Kind string

// The kinds in use.
const (
	// HashIP holds addresses.
	HashIP Kind = "hash:ip"
	// HashIPPort holds addresses with protocol and port.
	HashIPPort Kind = "hash:ip,port"
	// HashIPPortIP holds addresses with protocol, port and a second address.
	HashIPPortIP Kind = "hash:ip,port,ip"
	// HashIPPortNet holds addresses with protocol, port and a network.
	HashIPPortNet Kind = "hash:ip,port,net"
	// HashNetIface holds networks with the name of an interface.
	HashNetIface Kind = "hash:net,iface"
)

// Passing says how much a set holds to which rules add by themselves: the kernel makes no more room for such entries, so
// that its hash is made for all of them from the start.
type Passing struct {
	// Seconds is how long an entry stays.
	Seconds uint32
	// Buckets is the size of the hash, and Max the most entries: then new ones take the places of others.
	Buckets, Max uint32
}

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

// Entry is a member of a set. Fields that the set's kind does not have are zero.
type Entry struct {
	Addr  netip.Addr
	Proto Protocol
	Port  uint16
	// Net is the network, or the second address as a network of one. Its length is at least 1: ipsets can't hold /0.
	Net netip.Prefix
	// MSS is what maps of nf_tables have for the place; ipsets have none.
	MSS uint16
	// To is the endpoint that sets of nf_tables have besides the place; ipsets have none.
	To netip.AddrPort
}

// Member is an entry that is in a set.
type Member struct {
	Entry
	// Left is how long it stays; 0 means forever.
	Left time.Duration
}

// Compare orders entries by address, protocol, port, network, MSS and endpoint.
func (e Entry) Compare(o Entry) int {
	return cmp.Or(
		e.Addr.Compare(o.Addr), cmp.Compare(e.Proto, o.Proto), cmp.Compare(e.Port, o.Port),
		e.Net.Addr().Compare(o.Net.Addr()), cmp.Compare(e.Net.Bits(), o.Net.Bits()), cmp.Compare(e.MSS, o.MSS), e.To.Compare(o.To),
	)
}

// Header is what a set says of itself.
type Header struct {
	Kind   Kind
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
	ErrUnsupported = errors.New("the kernel lacks ipsets of this kind: modprobe ip_set ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_hash_netiface xt_set")
)

// Soon calls destroy for a set until that is not in use any more, for two seconds at most.
func Soon(ctx context.Context, destroy func(set string) error, set string) error {
	const patience, pause = 2 * time.Second, 5 * time.Millisecond
	for deadline := time.Now().Add(patience); ; {
		err := destroy(set)
		if !errors.Is(err, ErrInUse) || time.Now().After(deadline) {
			return err
		}
		if !wake.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}
