package vrrp

import (
	"net/netip"

	"vipd/balancer/failover/local"
)

// Send sends an advert immediately. [Node.Sent] receives the result.
type Send struct {
	Group string
	// On is the index of the interface, and Source is the source address. The TTL is 255.
	On      int
	Source  netip.Addr
	Packets []Packet
	// number numbers a group's adverts in order.
	number uint64
}

// Packet is an advert to one destination.
type Packet struct {
	To   netip.Addr
	Data []byte // bytes after the IP header
}

// Action marks Send as an action.
func (Send) Action() {}

// Datagram is a packet that arrived.
type Datagram struct {
	On       int // index of the interface
	From, To netip.Addr
	TTL      int
	// At is when the packet arrived. Zero means now.
	At   local.Time
	Data []byte // bytes after the IP header
}
