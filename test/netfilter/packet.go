package netfilter

import (
	"fmt"
	"net/netip"
	"strings"
)

// Protocol is a transport protocol, by the name that iptables prints.
type Protocol string

// The protocols.
const (
	TCP    Protocol = "tcp"
	UDP    Protocol = "udp"
	SCTP   Protocol = "sctp"
	ICMP   Protocol = "icmp"
	ICMPv6 Protocol = "ipv6-icmp"
)

func (p Protocol) hasPorts() bool { return p == TCP || p == UDP || p == SCTP }

// State is what conntrack says of a packet.
type State string

// The states. The zero value is New.
const (
	New         State = "NEW"
	Established State = "ESTABLISHED"
	Related     State = "RELATED"
	Invalid     State = "INVALID"
	Untracked   State = "UNTRACKED"
)

// Packet is a packet as it arrives, or as the host sends it.
type Packet struct {
	// Src and Dst are its ends; ports are 0 for protocols without any.
	Src, Dst netip.AddrPort
	Proto    Protocol
	// In is the interface on which it arrives; "": the host itself sends it.
	In string
	// Mark is its mark; packets that arrive have none.
	Mark uint32
	Conn Conn
}

// Conn is what conntrack knows of a packet's connection.
type Conn struct {
	// State of the packet; zero: New.
	State State
	// Mark is the connection's mark.
	Mark uint32

	// client and asked are the ends as the client sees them, source and server as the server does. They are known of
	// connections that went on from a verdict.
	client, asked, source, server netip.AddrPort
	// reply: the packet comes from the server.
	reply bool
}

// Host is what decides besides the rules.
type Host struct {
	// Route says whether a destination is the host's own, and otherwise by which interface it is reached; "": not at all.
	Route func(dst netip.Addr) (local bool, out string)
	// Address is the address that MASQUERADE gives to what leaves by an interface, and that REDIRECT sends to what came
	// in by it, of the family that v6 says.
	Address func(dev string, v6 bool) netip.Addr
}

// Fate is what becomes of a packet.
type Fate string

// The fates.
const (
	// Delivered: to a program of the host.
	Delivered Fate = "delivered"
	// Forwarded: it left the host.
	Forwarded Fate = "forwarded"
	// Dropped: nobody hears of it.
	Dropped Fate = "dropped"
	// Rejected: the sender hears no; see Verdict.RejectWith.
	Rejected Fate = "rejected"
	// Unrouted: the host has no route to where it should go.
	Unrouted Fate = "unrouted"
)

// Verdict is what became of a packet.
type Verdict struct {
	Fate Fate
	// RejectWith is the kind of a rejection, in REJECT's words: tcp-reset, icmp-port-unreachable, ...
	RejectWith string
	// Src and Dst are its ends at last.
	Src, Dst netip.AddrPort
	// Out is the interface by which it left.
	Out string
	// Masqueraded: its source was rewritten.
	Masqueraded bool
	// Mark and Connmark are the marks of the packet and its connection at last.
	Mark, Connmark uint32
	// Path are the chains that it went through, as table/CHAIN, in order, and the rules that decided, as they are written.
	Path []string
	// Rules is how many rules were looked at.
	Rules int

	sent Packet
}

// String is the verdict in a line; Path tells how it came to it.
func (v Verdict) String() string {
	var b strings.Builder
	b.WriteString(string(v.Fate))
	switch v.Fate {
	case Rejected:
		b.WriteString(" with " + v.RejectWith)
	case Forwarded, Delivered:
		fmt.Fprintf(&b, " to %s", v.Dst)
		if v.Masqueraded {
			b.WriteString(" masqueraded")
		}
	}
	return b.String()
}

// Next is a later packet of the same connection in the same direction, after the server has answered.
func (v Verdict) Next() Packet {
	p := v.sent
	p.Conn = v.conn()
	p.Conn.reply = v.sent.Conn.reply
	return p
}

// Reply is the server's answer to the first packet of a connection that was delivered or forwarded.
func (v Verdict) Reply() Packet {
	p := Packet{Src: v.Dst, Dst: v.Src, Proto: v.sent.Proto, Conn: v.conn(), In: v.Out}
	p.Conn.reply = true
	return p
}

func (v Verdict) conn() Conn {
	c := v.sent.Conn
	c.State, c.Mark = Established, v.Connmark
	if !c.client.IsValid() {
		c.client, c.asked, c.source, c.server = v.sent.Src, v.sent.Dst, v.Src, v.Dst
	}
	return c
}
