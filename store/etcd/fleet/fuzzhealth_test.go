package fleet

import (
	"testing"
	"vipd/store/etcd/schema"
)

// FuzzHealth decodes arbitrary values under arbitrary keys of the fleet's health checks. Encoding
// and decoding a valid key or vote must not change it, except for a cause that is too long.
func FuzzHealth(f *testing.F) {
	for key, text := range map[string]string{
		"n1/live":                `{"version":1,"exec":true}`,
		"n1/web/10.0.0.1:80":     `{"version":1,"verdict":"down","since":"2026-01-31T12:00:00.123Z","cause":"connection refused"}`,
		"n1/web/[fd00::1]:80":    `{"version":1,"verdict":"unknown","since":"2026-01-31T12:00:00Z","new":[]}`,
		"n1/web/10.0.0.1":        `{"version":2,"verdict":"up"}`,
		"n1/web/010.0.0.1:80":    `{"version":1,"verdict":"sideways"}`,
		"n1/live/10.0.0.1:80":    `{"version":1,"verdict":"up"}`,
		"live/live/10.0.0.1:080": "", "": "", "/": "", "n1/": "",
	} {
		f.Add(key, []byte(text))
	}
	keys, err := schema.NewKeys("/p")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		key := "/p/health/" + name
		p, err := readHealth(keys, key, text)
		if err != nil {
			return
		}
		node := string(p.voteKey.Node)
		if p.checker != nil {
			again, err := encodeChecker(*p.checker)
			if q, err2 := readHealth(keys, keys.HealthLive(node), again); err != nil || err2 != nil || q.voteKey != p.voteKey || *q.checker != *p.checker {
				t.Fatalf("%+v: after encoding and decoding = %+v, %v, %v, want no change", p, q, err, err2)
			}
			return
		}
		if written := keys.Health(node, p.voteKey.Target); written != key {
			t.Fatalf("key %q of %+v is encoded as %q, want the same key", key, p.voteKey, written)
		}
		again, err := encodeVote(p.vote)
		if err != nil {
			t.Fatal(err)
		}
		q, err := readHealth(keys, key, again)
		if err != nil || q.voteKey != p.voteKey || q.vote.Verdict != p.vote.Verdict || len(p.vote.Cause) <= maxCause && q.vote.Cause != p.vote.Cause {
			t.Fatalf("vote of key %s after encoding and decoding = %+v, %v, want no change", again, q, err)
		}
	})
}
