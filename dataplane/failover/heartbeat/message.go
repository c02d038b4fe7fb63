package heartbeat

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"

	"vipd/balancer/failover"
	"vipd/balancer/failover/local"
)

// magic is the start of each datagram. It includes the format's version.
const magic = "vipd\x01"

// ErrKey means that a datagram was signed with another key.
var ErrKey = errors.New("it is signed with another key")

var (
	errShort     = errors.New("it is not a message from vipd")
	errElsewhere = errors.New("it was sent to another address")
)

// head follows magic. The names follow head.
type head struct {
	Kind failover.MessageKind
	// Ready is 0 or 1, or 2 if the sender is away. Earlier versions treat 2 like 1.
	Ready         byte
	Well          uint16
	Boot, Session failover.ID
	Sent          local.Time
}

// tail follows the names. Earlier versions neither send nor read it.
type tail struct {
	Echo failover.Stamp
	To   [16]byte
}

// Encode returns the datagram that sends a message to an address, signed with a key. Names may have
// at most 255 bytes.
func Encode(m failover.Message, to netip.Addr, key []byte) []byte {
	b := append(make([]byte, 0, 160), magic...)
	ready := byte(0)
	if m.Ready {
		if ready = 1; m.Away {
			ready = 2
		}
	}
	b, _ = binary.Append(b, binary.BigEndian, head{m.Kind, ready, m.Well, m.Boot, m.Session, m.Sent}) // its size is fixed
	for _, name := range []string{m.From, m.Subject} {
		b = append(append(b, byte(len(name))), name...)
	}
	b, _ = binary.Append(b, binary.BigEndian, tail{m.Echo, to.As16()}) // its size is fixed
	return append(b, sign(b, key)...)
}

func sign(text, key []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(text)
	return h.Sum(nil)
}

// Decode parses a datagram that arrived at an address. It must be signed with one of the keys.
func Decode(b []byte, at netip.Addr, keys [][]byte) (m failover.Message, err error) {
	if len(b) < len(magic)+sha256.Size || string(b[:len(magic)]) != magic {
		return m, errShort
	}
	text, mac := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	ok := false
	for _, key := range keys {
		ok = ok || hmac.Equal(mac, sign(text, key))
	}
	if !ok {
		return m, ErrKey
	}
	p := text[len(magic):]
	var h head
	n, err := binary.Decode(p, binary.BigEndian, &h)
	if err != nil {
		return m, errShort
	}
	m, p = failover.Message{Kind: h.Kind, Ready: h.Ready > 0, Away: h.Ready == 2, Well: h.Well, Boot: h.Boot, Session: h.Session, Sent: h.Sent}, p[n:]
	for _, name := range []*string{&m.From, &m.Subject} {
		if len(p) == 0 || len(p) < 1+int(p[0]) {
			return m, errShort
		}
		*name, p = string(p[1:1+int(p[0])]), p[1+int(p[0]):]
	}
	if m.Echoless = len(p) == 0; m.Echoless {
		return m, nil
	}
	var t tail
	if _, err := binary.Decode(p, binary.BigEndian, &t); err != nil {
		return m, errShort
	}
	if t.To != at.As16() {
		return m, errElsewhere
	}
	m.Echo = t.Echo
	return m, nil
}
