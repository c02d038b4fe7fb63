package vrrp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Protocol is VRRP's number in the IP header. TTL is the TTL or hop limit of each packet; a router
// that forwards a packet decreases it.
const (
	Protocol = 112
	TTL      = 255
)

func MulticastGroup(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{224, 0, 0, 18})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 0x12})
}

// AuthType is the kind of authentication in an advert of version 2.
type AuthType uint8

// These are the kinds of authentication. Version 3 does not have authentication, and header
// authentication (2) is not supported.
const (
	NoAuth     AuthType = 0
	SimpleAuth AuthType = 1
)

// maxPassword is the length of the authentication data, which ends each advert of version 2.
const maxPassword = 8

// Advert is the message of a router that owns its VIPs or resigns.
type Advert struct {
	Version  int // 2 or 3
	RouterID uint8
	Priority uint8
	// Interval is the time between the sender's adverts: whole seconds up to 255 in version 2,
	// hundredths up to 40.95 s in version 3.
	Interval time.Duration
	// Addrs holds 1 to 255 addresses in the packet's address family.
	Addrs []netip.Addr
	// Auth and Password are used only in version 2. A password has at most 8 bytes, and is sent in
	// the clear.
	Auth     AuthType
	Password string
}

const (
	advertType     = 1
	headerSize     = 8
	checksumOffset = 6
	// hundredth is the unit of the interval in version 3. The interval has 12 bits.
	hundredth    = 10 * time.Millisecond
	intervalBits = 0x0fff
)

// Append appends the encoded advert to b. The parameters from and to are the packet's addresses.
func (a *Advert) Append(b []byte, from, to netip.Addr, sum Checksum) []byte {
	start := len(b)
	b = append(b, byte(a.Version<<4|advertType), a.RouterID, a.Priority, byte(len(a.Addrs)))
	if a.Version == 2 {
		b = append(b, byte(a.Auth), byte(a.Interval/time.Second))
	} else {
		b = binary.BigEndian.AppendUint16(b, uint16(a.Interval/hundredth)&intervalBits)
	}
	b = append(b, 0, 0)
	for _, addr := range a.Addrs {
		b = append(b, addr.AsSlice()...)
	}
	if a.Version == 2 {
		var data [maxPassword]byte
		copy(data[:], a.Password)
		b = append(b, data[:]...)
	}
	message := b[start:]
	binary.BigEndian.PutUint16(message[checksumOffset:], ^fold(sum.initial(a.Version, from, to, len(message))+add(message)))
	return b
}

// Decode returns the advert in a message, and the kind of its checksum. The parameters from and to
// are the packet's addresses. Bytes after the message are ignored, because routers may append their
// own authentication. Each error is a *DropError.
func Decode(message []byte, from, to netip.Addr) (*Advert, Checksum, error) {
	if len(message) < headerSize {
		return nil, "", dropf(Short, "has %d bytes, too few for a VRRP header", len(message))
	}
	a := &Advert{Version: int(message[0] >> 4), RouterID: message[1], Priority: message[2]}
	switch {
	case message[0]&0x0f != advertType || a.Version != 2 && a.Version != 3:
		return nil, "", dropf(WrongVersion, "has version %d and type %d", a.Version, message[0]&0x0f)
	case a.Version == 2 && !from.Is4():
		return nil, "", dropf(WrongVersion, "has version 2, which supports only IPv4")
	}
	width, n := from.BitLen()/8, int(message[3])
	size := headerSize + n*width
	if a.Version == 2 {
		size += maxPassword
	}
	if len(message) < size {
		return nil, "", dropf(Short, "has %d bytes, but needs %d for its %d addresses", len(message), size, n)
	}
	message = message[:size]
	sum, ok := verify(a.Version, message, from, to)
	switch {
	case !ok:
		return nil, "", dropf(WrongChecksum, "has a wrong checksum")
	case n == 0:
		return nil, "", dropf(WrongList, "lists no address")
	}
	for i := range n {
		addr, _ := netip.AddrFromSlice(message[headerSize+i*width:][:width])
		a.Addrs = append(a.Addrs, addr)
	}
	if a.Version == 2 {
		a.Auth, a.Interval = AuthType(message[4]), time.Duration(message[5])*time.Second
		a.Password = strings.TrimRight(string(message[size-maxPassword:]), "\x00")
	} else {
		a.Interval = time.Duration(binary.BigEndian.Uint16(message[4:])&intervalBits) * hundredth
	}
	if a.Interval == 0 {
		return nil, "", dropf(WrongInterval, "has an interval of 0")
	}
	return a, sum, nil
}

// Reason is the reason for dropping a packet, as a label value for metrics.
type Reason string

// These are the reasons.
const (
	LowTTL        Reason = "ttl"
	WrongChecksum Reason = "checksum"
	WrongVersion  Reason = "version"
	WrongInterval Reason = "interval"
	WrongList     Reason = "list"
	WrongPassword Reason = "password"
	WrongPeer     Reason = "peer"
	Short         Reason = "short"
)

// DropError is the error for a dropped packet.
type DropError struct {
	Reason Reason
	// Text completes a sentence that starts with "the advert".
	Text string
	// listed reports whether the advert is readable and lists one of the group's VIPs.
	listed bool
}

func (e *DropError) Error() string { return e.Text }

func dropf(r Reason, format string, args ...any) error {
	return &DropError{Reason: r, Text: fmt.Sprintf(format, args...)}
}
