package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// Name is a service's name, which is a DNS label.
type Name string

// Compare orders names alphabetically.
func (n Name) Compare(other Name) int { return cmp.Compare(n, other) }

// Valid reports whether n is a lower-case DNS label.
func (n Name) Valid() bool { return isLabel(string(n)) }

// Protocol is a transport protocol. In definitions, the zero value means TCP. In compiled state, a
// Protocol is never zero.
type Protocol string

// These are the supported protocols.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	SCTP Protocol = "sctp"
)

// Values lists the possible values.
func (Protocol) Values() []string { return []string{"tcp", "udp", "sctp"} }

// Number returns the protocol's number in IP headers, or 0 for an unknown protocol.
func (p Protocol) Number() byte {
	switch p {
	case TCP:
		return 6
	case UDP:
		return 17
	case SCTP:
		return 132
	}
	return 0
}

// ProtocolOf returns the protocol that has this number in IP headers, or "" for an unknown number.
func ProtocolOf(number byte) Protocol {
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		if p.Number() == number {
			return p
		}
	}
	return ""
}

// Key identifies a frontend by its address, port and protocol.
type Key struct {
	Addr  netip.Addr
	Port  PortRange
	Proto Protocol
}

// Compare orders keys by address, port and protocol.
func (k Key) Compare(other Key) int {
	if c := k.Addr.Compare(other.Addr); c != 0 {
		return c
	}
	if c := cmp.Compare(k.Port, other.Port); c != 0 {
		return c
	}
	return cmp.Compare(k.Proto, other.Proto)
}

// Covers reports whether k has the same address and protocol as other, and contains all of its
// ports.
func (k Key) Covers(other Key) bool {
	return k.Addr == other.Addr && k.Proto == other.Proto && k.Port.First() <= other.Port.First() && other.Port.Last() <= k.Port.Last()
}

// AddrPort returns the address and the first port of the key.
func (k Key) AddrPort() netip.AddrPort { return netip.AddrPortFrom(k.Addr, k.Port.First()) }

// Place formats the address and port of the key, such as 10.96.0.10:80 or [fd00::1]:8000-8999.
func (k Key) Place() string {
	if !k.Port.IsRange() {
		return k.AddrPort().String()
	}
	return strings.TrimSuffix(netip.AddrPortFrom(k.Addr, 0).String(), "0") + k.Port.String()
}

// String formats the key as 10.96.0.10:80/tcp or [fd00::1]:8000-8999/tcp.
func (k Key) String() string { return k.Place() + "/" + string(k.Proto) }

// MarshalText formats the key like String.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText parses the key like ParseKey.
func (k *Key) UnmarshalText(text []byte) (err error) {
	*k, err = ParseKey(string(text))
	return err
}

// ParseKey parses ADDRESS:PORT[/PROTOCOL]. The port may be a range, or "all". The default protocol
// is TCP.
func ParseKey(text string) (Key, error) {
	where, proto, ok := strings.Cut(text, "/")
	if !ok {
		proto = string(TCP)
	}
	colon := strings.LastIndexByte(where, ':') + 1
	at, err := netip.ParseAddrPort(where[:colon] + "0")
	port, portErr := ParsePortRange(where[colon:])
	if err != nil || portErr != nil {
		return Key{}, fmt.Errorf("%q is not ADDRESS:PORT[/tcp|udp|sctp], such as 10.96.0.10:80 or [fd00::1]:53/udp", text)
	}
	switch Protocol(proto) {
	case TCP, UDP, SCTP:
		return Key{at.Addr().Unmap(), port, Protocol(proto)}, nil
	}
	return Key{}, fmt.Errorf("%q has the protocol %q; use tcp, udp or sctp", text, proto)
}

// Target identifies an endpoint of a service, or all of the service's endpoints at Addr if Port is
// 0. It is the key of overrides and health verdicts.
type Target struct {
	Service Name
	Addr    netip.Addr
	Port    uint16
}

// Compare orders targets by service, address and port.
func (t Target) Compare(other Target) int {
	if c := t.Service.Compare(other.Service); c != 0 {
		return c
	}
	if c := t.Addr.Compare(other.Addr); c != 0 {
		return c
	}
	return cmp.Compare(t.Port, other.Port)
}

// Address formats the target without its service: 192.168.1.11 or 192.168.1.11:8080.
func (t Target) Address() string {
	if t.Port == 0 {
		return t.Addr.String()
	}
	return netip.AddrPortFrom(t.Addr, t.Port).String()
}

// String formats the target as SERVICE/ADDRESS[:PORT].
func (t Target) String() string { return string(t.Service) + "/" + t.Address() }

// ParseEndpoint is like ParseTarget, but also accepts a port range, whose first port becomes the
// target's port. The result ports is 0 if address has no port.
func ParseEndpoint(service Name, address string) (t Target, ports PortRange, err error) {
	colon := strings.LastIndexByte(address, ':') + 1
	ports, rangeErr := ParsePortRange(address[colon:])
	if at, err := netip.ParseAddrPort(address[:colon] + "0"); err == nil && rangeErr == nil && ports.IsRange() {
		return Target{service, at.Addr().Unmap(), ports.First()}, ports, nil
	}
	t, err = ParseTarget(service, address)
	return t, PortRange(t.Port), err
}

// ParseTarget parses an endpoint's address in the form ADDRESS or ADDRESS:PORT ([ADDRESS]:PORT for
// IPv6).
func ParseTarget(service Name, address string) (Target, error) {
	if a, err := netip.ParseAddr(address); err == nil {
		return Target{service, a.Unmap(), 0}, nil
	}
	if ap, err := netip.ParseAddrPort(address); err == nil && ap.Port() != 0 {
		return Target{service, ap.Addr().Unmap(), ap.Port()}, nil
	}
	return Target{}, fmt.Errorf("%q is not an endpoint's ADDRESS or ADDRESS:PORT, such as 192.168.1.11, 192.168.1.11:8080 or [fd00::1]:8080", address)
}

// EndpointID identifies an endpoint that is registered separately from its service (the key
// endpoints/SERVICE/ID in etcd).
type EndpointID struct {
	Service Name
	ID      string
}

// Compare orders by service, then ID.
func (e EndpointID) Compare(other EndpointID) int {
	return cmp.Or(e.Service.Compare(other.Service), cmp.Compare(e.ID, other.ID))
}
