package conntrack

import (
	"net/netip"
	"time"

	"vipd/balancer"
)

// Flow is one connection, or what goes for one in UDP, as the kernel remembers it.
type Flow struct {
	// Proto is TCP, UDP or SCTP.
	Proto balancer.Protocol
	// Orig is what the client sends; Reply is what the other side answers with. Without NAT, one is the other turned round.
	Orig, Reply Tuple
	// Status says what has become of the flow so far.
	Status Status
	// State is the state of TCP and SCTP in the kernel's words, in lower case: "established", "syn-sent", "time-wait";
	// "" where the kernel did not say. Of UDP it is "unreplied", "replied" or "assured", which is replied more than once.
	State string
	// Left is how long the kernel remembers the flow if no packet comes, in whole seconds.
	Left time.Duration
	// Start is when the flow began; zero unless sysctl net.netfilter.nf_conntrack_timestamp was on then.
	Start time.Time
	// In and Out are the bytes from and to the client, with IP headers; zero unless sysctl
	// net.netfilter.nf_conntrack_acct was on when the flow began.
	In, Out uint64

	// id tells the flow from an earlier or later one of the same tuple, in the bytes that the kernel sent; 0 means not known.
	id uint32
	// zone is that of Orig. It is the whole flow's, or, if half, that of the original direction alone.
	zone uint16
	half bool
}

// Tuple is the addresses of packets in one direction.
type Tuple struct {
	Src, Dst netip.AddrPort
}

// Frontend returns the protocol and original destination: the frontend's key, if the flow is one of a frontend's.
func (f *Flow) Frontend() balancer.Key {
	return balancer.Key{Addr: f.Orig.Dst.Addr(), Port: f.Orig.Dst.Port(), Proto: f.Proto}
}

// Client returns where the flow comes from.
func (f *Flow) Client() netip.AddrPort { return f.Orig.Src }

// Backend returns who answers: where DNAT sent the flow, or, without, the original destination.
func (f *Flow) Backend() netip.AddrPort { return f.Reply.Src }

// Answered reports whether the other side has accepted the connection: it has answered, and an SCTP association is past its
// handshake. A UDP flow is answered once any datagram came back.
func (f *Flow) Answered() bool {
	switch f.State {
	case "closed", "cookie-wait", "cookie-echoed":
		return false
	}
	return f.Status.Has(SeenReply)
}

// Status is a set of the kernel's bits (IPS_..., include/uapi/linux/netfilter/nf_conntrack_common.h).
type Status uint32

// The bits that tell callers something. Others may be set.
const (
	// SeenReply: there were packets in both directions.
	SeenReply Status = 1 << 1
	// Assured: the kernel does not drop the flow early when its table is full.
	Assured Status = 1 << 2
	// DstNAT: the destination is translated.
	DstNAT Status = 1 << 5
)

// Has reports whether all of bits are set.
func (s Status) Has(bits Status) bool { return s&bits == bits }

// tcpState names enum tcp_conntrack (include/uapi/linux/netfilter/nf_conntrack_tcp.h).
func tcpState(n byte) string {
	return word([]string{"none", "syn-sent", "syn-recv", "established", "fin-wait", "close-wait", "last-ack", "time-wait", "close", "syn-sent2"}, n)
}

// sctpState names enum sctp_conntrack (include/uapi/linux/netfilter/nf_conntrack_sctp.h).
func sctpState(n byte) string {
	return word([]string{
		"none", "closed", "cookie-wait", "cookie-echoed", "established", "shutdown-sent", "shutdown-recd", "shutdown-ack-sent",
		"heartbeat-sent", "heartbeat-acked",
	}, n)
}

// word is "" for a state that is newer than this program.
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
