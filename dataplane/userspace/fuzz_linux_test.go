package userspace

import (
	"bytes"
	"testing"
)

// FuzzHandedOver decodes arbitrary bytes as an item from an earlier vipd process. The bytes after
// the item's description must be preserved.
func FuzzHandedOver(f *testing.F) {
	f.Add([]byte(`{"kind":"conn","key":{"Addr":"10.96.0.10","Port":80,"Proto":"tcp"}}tail`))
	f.Add([]byte(`{"kind":"listener","redirected":true}`))
	f.Add([]byte(`{"kind":"clients","clients":[{}]}`))
	f.Add([]byte(`{"kind":"conn","key":{"Addr":"","Port":-1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, tail, err := decodeHanded(data)
		if err == nil && !bytes.HasSuffix(data, tail) {
			t.Errorf("item %q: bytes after the description = %q, want a suffix of the item", data, tail)
		}
	})
}
