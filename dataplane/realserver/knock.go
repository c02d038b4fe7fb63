package realserver

import (
	"net"
	"net/netip"
)

// Answer is a real server's answer to a connection request.
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

// Target is a real server on one of this host's links.
type Target struct {
	// Device is the link's device. MAC is the server's MAC address on that link.
	Device string
	MAC    net.HardwareAddr
	VIP    netip.AddrPort
}

// DocumentationAddr returns an address for documentation (RFC 5737, RFC 3849). A server sends
// answers to it through its default route, as to any client in another network.
func DocumentationAddr(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{198, 51, 100, 254})
	}
	return netip.MustParseAddr("2001:db8::fe")
}
