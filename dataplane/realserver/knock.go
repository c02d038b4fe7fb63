package realserver

import (
	"net"
	"net/netip"
)

// Answer is the answer of a real server to a request for a connection.
type Answer string

// These are the answers.
const (
	// Accepted means that a program listens on the VIP and port.
	Accepted Answer = "accepted"
	// Refused means that the server has the VIP, but no program listens.
	Refused Answer = "refused"
	// Silence means that no answer arrived on the device.
	Silence Answer = "silence"
)

// Target is a real server on a link of this host.
type Target struct {
	// Device is the device of the link. MAC is the server's address there.
	Device string
	MAC    net.HardwareAddr
	VIP    netip.AddrPort
}

// DocumentationAddr returns an address for documentation (RFC 5737, RFC 3849). A server sends
// answers to it by its default route, as to a client of another network.
func DocumentationAddr(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{198, 51, 100, 254})
	}
	return netip.MustParseAddr("2001:db8::fe")
}
