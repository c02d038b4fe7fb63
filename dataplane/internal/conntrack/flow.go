package conntrack

import (
	"net/netip"
	"time"

	"vipd/balancer"
)

// Flow is a connection, or the UDP equivalent, in conntrack.
type Flow struct {
	// Proto is TCP, UDP or SCTP.
	Proto balancer.Protocol
	// Orig holds the addresses of the client's packets, and Reply the addresses of the replies.
	// Without NAT, each is the inverse of the other.
	Orig, Reply Tuple
	// Status holds the kernel's status bits for the flow.
	Status Status
	// State is the kernel's name for the state of a TCP or SCTP flow in lower case, such as
	// "established", "syn-sent" or "time-wait". It is "" if the state is unknown. For UDP it is
	// "unreplied", "replied", or "assured" after several replies.
	State string
	// Left is the time until the kernel drops the flow if no packet arrives, in whole seconds. It
	// is 0 for an offloaded flow, whose packets have no such timeout.
	Left time.Duration
	// Start is when the flow started. It is zero unless the sysctl
	// net.netfilter.nf_conntrack_timestamp was enabled then.
	Start time.Time
	// In and Out are the numbers of bytes from and to the client, including IP headers. They are
	// zero unless the sysctl net.netfilter.nf_conntrack_acct was enabled when the flow started.
	In, Out uint64
	// Ports is the frontend's port range. It is 0 for a single port, or if the program that read
	// the flow has not set it.
	Ports balancer.PortRange

	// id distinguishes the flow from other flows with the same tuple. The kernel assigns it. Zero
	// means that it is unknown.
	id uint32
	// zone is the conntrack zone of Orig. If half is set, the zone applies only to the original
	// direction, otherwise to the whole flow.
	zone uint16
	half bool
}

// Tuple holds the addresses of packets in one direction.
type Tuple struct {
	Src, Dst netip.AddrPort
}

// Frontend returns the key of the flow's frontend, which may not exist. The key consists of the
// original destination, but with Ports as the port if Ports is set.
func (f *Flow) Frontend() balancer.Key {
	k := f.Destination()
	if f.Ports != 0 {
		k.Port = f.Ports
	}
	return k
}

// Destination returns the protocol and original destination as a key.
func (f *Flow) Destination() balancer.Key {
	return balancer.Key{Addr: f.Orig.Dst.Addr(), Port: balancer.PortRange(f.Orig.Dst.Port()), Proto: f.Proto}
}

// Client returns the flow's original source.
func (f *Flow) Client() netip.AddrPort { return f.Orig.Src }

// Backend returns the address that sends the replies: the destination after DNAT, or the original
// destination without DNAT. If Ports is set, the result has the backend's first port.
func (f *Flow) Backend() netip.AddrPort {
	if f.Ports != 0 && f.Status.Has(DstNAT) {
		return f.BackendOf(f.Ports)
	}
	return f.Reply.Src
}

// BackendOf returns the flow's backend if the flow belongs to a frontend with these ports. The
// result has the first port of the backend's range.
func (f *Flow) BackendOf(ports balancer.PortRange) netip.AddrPort {
	return netip.AddrPortFrom(f.Reply.Src.Addr(), f.Reply.Src.Port()-f.Orig.Dst.Port()+ports.First())
}

// Answered reports whether the other side has accepted the connection. It must have replied, and an
// SCTP association must have completed its handshake. For UDP, any reply is sufficient.
func (f *Flow) Answered() bool {
	switch f.State {
	case "closed", "cookie-wait", "cookie-echoed":
		return false
	}
	return f.Status.Has(SeenReply)
}

// Status is a set of the kernel's bits (IPS_...,
// include/uapi/linux/netfilter/nf_conntrack_common.h).
type Status uint32

// These are the bits that callers use. Other bits may also be set.
const (
	// SeenReply means that packets passed in both directions.
	SeenReply Status = 1 << 1
	// Assured means that the kernel does not drop the flow early when the table is full.
	Assured Status = 1 << 2
	// DstNAT means that the destination address is translated.
	DstNAT Status = 1 << 5
	// Offloaded means that a flowtable forwards the flow's packets. The kernel then reports neither
	// the flow's state nor its timeout. An offloaded TCP flow is established.
	Offloaded Status = 1 << 14
)

// Has reports whether all of bits are set.
func (s Status) Has(bits Status) bool { return s&bits == bits }

// tcpState returns the name of a value of enum tcp_conntrack
// (include/uapi/linux/netfilter/nf_conntrack_tcp.h).
func tcpState(n byte) string {
	return word([]string{"none", "syn-sent", "syn-recv", "established", "fin-wait", "close-wait", "last-ack", "time-wait", "close", "syn-sent2"}, n)
}

// sctpState returns the name of a value of enum sctp_conntrack
// (include/uapi/linux/netfilter/nf_conntrack_sctp.h).
func sctpState(n byte) string {
	return word([]string{
		"none", "closed", "cookie-wait", "cookie-echoed", "established", "shutdown-sent", "shutdown-recd", "shutdown-ack-sent",
		"heartbeat-sent", "heartbeat-acked",
	}, n)
}

// word returns words[n], or "" for a state that is newer than this program.
func word(words []string, n byte) string {
	if int(n) < len(words) {
		return words[n]
	}
	return ""
}

func udpState(s Status) string {
	switch {
	case s.Has(Assured):
		return "assured"
	case s.Has(SeenReply):
		return "replied"
	}
	return "unreplied"
}
