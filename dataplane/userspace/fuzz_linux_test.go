package userspace

import (
	"bytes"
	"testing"
)

// FuzzHandedOver decodes arbitrary bytes as an item that an earlier vipd process has handed over.
// The bytes after the item's description must be preserved.
func FuzzHandedOver(f *testing.F) {
	f.Add([]byte(`{"kind":"conn","key":{"Addr":"10.96.0.10","Port":80,"Proto":"tcp"}}tail`))
	f.Add([]byte(`{"kind":"listener","redirected":true}`))
	f.Add([]byte(`{"kind":"clients","clients":[{}]}`))
	f.Add([]byte(`{"kind":"conn","key":{"Addr":"","Port":-1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, tail, err := decodeHanded(data)
		if err == nil && !bytes.HasSuffix(data, tail) {
			t.Errorf("bytes after the description in %q = %q, want a suffix of the data", data, tail)
		}
	})
}
