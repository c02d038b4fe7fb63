package convert

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// FuzzConvert converts arbitrary text from each format. The result must be an error that names the
// line, or TOML whose services vipd accepts.
func FuzzConvert(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.conf")
	if err != nil || len(files) == 0 {
		f.Fatalf("configurations = %d, error = %v, want at least one", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(filepath.Base(filepath.Dir(file)), text)
	}
	options := Options{VIPs: []netip.Addr{netip.MustParseAddr("10.5.0.1"), netip.MustParseAddr("2001:db8::1")}}
	f.Fuzz(func(t *testing.T, format string, text []byte) {
		if readers()[format] == nil || len(text) > 16<<10 {
			t.Skip("not a format, or a text that is too long")
		}
		result, err := Convert(format, "origin", text, options)
		placed, ok := errors.AsType[*Error](err)
		if err != nil && (!ok || placed.Line < 1 || placed.Text == "") {
			t.Fatalf("error = %v, want an error that names the line", err)
		}
		if err == nil {
			for _, p := range problemsOf(result) {
				t.Errorf("problem = %s, want none; converted:\n%s", p, result.TOML)
			}
		}
	})
}
