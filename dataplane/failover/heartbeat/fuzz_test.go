package heartbeat

import (
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer/failover"
)

// FuzzDecode signs arbitrary bytes and decodes them. A decoded message must be unchanged after it
// is encoded and decoded again. Bytes without a valid signature must be refused.
func FuzzDecode(f *testing.F) {
	key, at := []byte("one key"), netip.MustParseAddr("10.0.0.2")
	for _, m := range []failover.Message{
		{Kind: failover.Beat, From: "gw1", Boot: 1, Session: 2, Sent: 3},
		{Kind: failover.Vote, From: "gw1", Subject: "gw2", Boot: 1 << 63, Session: 3, Sent: 1 << 40, Ready: true, Away: true, Well: 0xfffe},
	} {
		b := Encode(m, at, key)
		f.Add(b[len(magic) : len(b)-len(sign(nil, key))])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		text := slices.Concat([]byte(magic), body)
		if m, err := Decode(text, at, [][]byte{key}); err == nil {
			t.Errorf("Decode(%q) without a signature = %+v, want an error", text, m)
		}
		m, err := Decode(slices.Concat(text, sign(text, key)), at, [][]byte{key})
		if err != nil {
			return
		}
		m.Echoless = false // only earlier versions send messages without echoes
		again, err := Decode(Encode(m, at, key), at, [][]byte{key})
		if err != nil || again != m {
			t.Errorf("Decode(Encode(%+v)) = %+v, %v; want the same message", m, again, err)
		}
	})
}
