package heartbeat

import (
	"errors"
	"testing"

	"vipd/balancer/ownership"
)

// TestMessages: what is encoded is decoded, with the key or the one before; with another key, changed or cut it is refused.
func TestMessages(t *testing.T) {
	key, other := []byte("one key"), []byte("another key")
	want := ownership.Message{
		Kind: ownership.Vote, From: "gw1", Subject: "gw2", Boot: 1 << 63, Session: 3, Sent: 1 << 40, Ready: true, Away: true, Well: 0xfffe,
	}
	b := Encode(want, key)
	if len(b) > 200 {
		t.Errorf("a heartbeat has %d bytes", len(b))
	}
	if got, err := Decode(b, [][]byte{other, key}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := Decode(b, [][]byte{other}); !errors.Is(err, ErrKey) {
		t.Errorf("another key: got %v", err)
	}
	for i := range b {
		changed := append([]byte{}, b...)
		changed[i] ^= 1
		if _, err := Decode(changed, [][]byte{key}); err == nil {
			t.Errorf("a changed byte %d was taken", i)
		}
		if _, err := Decode(b[:i], [][]byte{key}); err == nil {
			t.Errorf("%d bytes of %d were taken", i, len(b))
		}
	}
}
