package heartbeat

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"vipd/balancer/ownership"
)

// magic begins each datagram, with the version of what follows.
const magic = "vipd\x01"

// ErrKey is the error of a datagram that was signed with another key: of another fleet, or of none.
var ErrKey = errors.New("it is signed with another key")

var errShort = errors.New("it is no message of vipd")

// Encode returns the datagram of a message, signed with a key. Names are at most 255 bytes long.
func Encode(m ownership.Message, key []byte) []byte {
	b := make([]byte, 0, 160)
	b = append(b, magic...)
	ready := byte(0)
	if m.Ready {
		ready = 1
	}
	b = append(b, byte(m.Kind), ready)
	b = binary.BigEndian.AppendUint16(b, m.Well)
	b = binary.BigEndian.AppendUint64(b, uint64(m.Boot))
	b = binary.BigEndian.AppendUint64(b, uint64(m.Session))
	b = binary.BigEndian.AppendUint64(b, uint64(m.Sent))
	for _, name := range []string{m.From, m.Subject} {
		b = append(append(b, byte(len(name))), name...)
	}
	return append(b, sign(b, key)...)
}

func sign(text, key []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(text)
	return h.Sum(nil)
}

// Decode reads a datagram that was signed with one of the keys.
func Decode(b []byte, keys [][]byte) (m ownership.Message, err error) {
	const head = len(magic) + 4 + 24
	if len(b) < head+2+sha256.Size || string(b[:len(magic)]) != magic {
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
	m.Kind, m.Ready, m.Well = ownership.MessageKind(p[0]), p[1] == 1, binary.BigEndian.Uint16(p[2:])
	m.Boot, m.Session = ownership.ID(binary.BigEndian.Uint64(p[4:])), ownership.ID(binary.BigEndian.Uint64(p[12:]))
	m.Sent = ownership.Time(binary.BigEndian.Uint64(p[20:]))
	p = p[28:]
	for _, name := range []*string{&m.From, &m.Subject} {
		if len(p) == 0 || len(p) < 1+int(p[0]) {
			return m, errShort
		}
		*name, p = string(p[1:1+int(p[0])]), p[1+int(p[0]):]
	}
	return m, nil
}
