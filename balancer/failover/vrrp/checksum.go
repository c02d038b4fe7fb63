package vrrp

import (
	"encoding/binary"
	"net/netip"
)

// Checksum selects how a router computes the checksum in version 3 over IPv4, where implementations
// differ. All implementations agree on version 2, whose checksum does not cover a pseudo-header,
// and on IPv6, where it does.
type Checksum string

// These are the kinds of checksums.
const (
	// Plain covers only the message (RFC 9568).
	Plain Checksum = "plain"
	// Pseudo also covers the IPv4 pseudo-header. keepalived sends it by default, and requires it
	// from its peers.
	Pseudo Checksum = "pseudo"
	// OldUnicast is Pseudo with the multicast group as the destination even in unicast packets.
	// keepalived up to 1.3.6 sends it.
	OldUnicast Checksum = "old unicast"
)

// initial returns the sum of the pseudo-header of a packet, or 0 if the checksum does not cover it.
func (c Checksum) initial(version int, from, to netip.Addr, size int) uint32 {
	if version == 2 || from.Is4() && c == Plain {
		return 0
	}
	if from.Is4() && c == OldUnicast {
		to = MulticastGroup(true)
	}
	return add(from.AsSlice()) + add(to.AsSlice()) + uint32(size) + Protocol
}

// verify returns the kind of a message's checksum, and reports whether the checksum is correct.
func verify(version int, message []byte, from, to netip.Addr) (Checksum, bool) {
	kinds := []Checksum{Plain, Pseudo, OldUnicast}
	switch {
	case version == 2:
		kinds = kinds[:1]
	case !from.Is4():
		kinds = kinds[1:2]
	case to.IsMulticast():
		kinds = kinds[:2]
	}
	sum := add(message)
	for _, c := range kinds {
		if fold(c.initial(version, from, to, len(message))+sum) == 0xffff {
			return c, true
		}
	}
	return "", false
}

// add returns the sum of the 16-bit words of b.
func add(b []byte) (sum uint32) {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// fold reduces a sum to 16 bits by adding its carries.
func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
