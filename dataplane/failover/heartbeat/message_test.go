package heartbeat

import (
	"crypto/sha256"
	"errors"
	"net/netip"
	"testing"

	"vipd/balancer/failover"
)

// TestMessages encodes a message, and decodes it with the current and the previous key. If the key
// or address is wrong, or a byte was changed, Decode must refuse the datagram.
func TestMessages(t *testing.T) {
	key, other := []byte("one key"), []byte("another key")
	to := netip.MustParseAddr("10.0.0.2")
	want := failover.Message{
		Kind: failover.Vote, From: "gw1", Subject: "gw2", Boot: 1 << 63, Session: 3, Sent: 1 << 40, Ready: true, Away: true, Well: 0xfffe,
		Echo: failover.Stamp{Boot: 1<<63 + 1, Sent: 1 << 41},
	}
	b := Encode(want, to, key)
	if len(b) > 200 {
		t.Errorf("size of a heartbeat = %d bytes, want at most 200", len(b))
	}
	if got, err := Decode(b, to, [][]byte{other, key}); err != nil || got != want {
		t.Errorf("Decode = %+v, %v; want %+v", got, err, want)
	}
	if _, err := Decode(b, to, [][]byte{other}); !errors.Is(err, ErrKey) {
		t.Errorf("Decode with a wrong key: error = %v, want ErrKey", err)
	}
	for _, at := range []string{"10.0.0.3", "fd00::2"} {
		if _, err := Decode(b, netip.MustParseAddr(at), [][]byte{key}); !errors.Is(err, errElsewhere) {
			t.Errorf("datagram to %s, received at %s: error = %v, want errElsewhere", to, at, err)
		}
	}
	for i := range b {
		changed := append([]byte{}, b...)
		changed[i] ^= 1
		if _, err := Decode(changed, to, [][]byte{key}); err == nil {
			t.Errorf("Decode after a change to byte %d: error = nil, want an error", i)
		}
		if _, err := Decode(b[:i], to, [][]byte{key}); err == nil {
			t.Errorf("Decode of the first %d of %d bytes: error = nil, want an error", i, len(b))
		}
	}
}

// TestMessageOfEarlierVersion decodes a heartbeat from an earlier version, which has no echoes.
// Echoless must be set in the decoded message.
func TestMessageOfEarlierVersion(t *testing.T) {
	key, to := []byte("one key"), netip.MustParseAddr("10.0.0.2")
	want := failover.Message{Kind: failover.Beat, From: "gw1", Boot: 1, Session: 3, Sent: 1 << 40, Echoless: true}
	text := Encode(want, to, key)
	text = text[:len(text)-sha256.Size-len(tail{}.To)-16]
	got, err := Decode(append(text, sign(text, key)...), to, [][]byte{key})
	if err != nil || got != want {
		t.Errorf("Decode = %+v, %v; want %+v", got, err, want)
	}
}
