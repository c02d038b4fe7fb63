package tomlfile_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"vipd/store/tomlfile"
)

// TestBounds parses texts that would need much more memory than their size. Such a text must be
// rejected before it is parsed, with the line that exceeds a limit in the problem.
func TestBounds(t *testing.T) {
	nested := func(open, shut string, n int) string {
		return "\nx = " + strings.Repeat(open, n) + "1" + strings.Repeat(shut, n)
	}
	const deep, many = "f.toml:2: nests values more than 64 levels deep", "f.toml:500001: has more than 500000 keys and list elements; split it: store.path may name a folder"
	var flat strings.Builder
	for i := range 600_000 {
		fmt.Fprintf(&flat, "k%d = 1\n", i)
	}
	for what, c := range map[string]struct{ text, want string }{
		"64 inline tables":     {nested("{a=", "}", 64), ""},
		"64 arrays":            {nested("[", "]", 64), ""},
		"65 inline tables":     {nested("{a=", "}", 65), deep},
		"16,000 inline tables": {nested("{a=", "}", 16_000), deep},
		"16,000 arrays":        {nested("[", "]", 16_000), deep},
		"a long key":           {"\n" + strings.Repeat("a.", 16_000) + "a = 1", deep},
		"a long header":        {"\n[" + strings.Repeat("a.", 16_000) + "a]", deep},
		"many keys":            {flat.String(), many},
		"many elements":        {strings.Repeat("\n", 500_000) + "x = [" + strings.Repeat("1,", 600_000) + "1]", many},
		"a large text":         {"# " + strings.Repeat("x", 64<<20), "f.toml: is larger than 64 MiB; split it"},
	} {
		var before, after runtime.MemStats
		text := []byte(c.text)
		runtime.ReadMemStats(&before)
		d, problems := tomlfile.Parse("f.toml", text)
		runtime.ReadMemStats(&after)
		got := ""
		for _, p := range problems {
			got += p.String()
		}
		if got != c.want || (d == nil) != (c.want != "") {
			t.Errorf("%s: problem = %.200q, want %q", what, got, c.want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 4*uint64(len(text))+8<<20 {
			t.Errorf("%s: Parse allocated %d MiB for %d kB of text, want at most %d MiB", what, took>>20, len(text)>>10, (4*len(text)+8<<20)>>20)
		}
		if err := tomlfile.Decode("f.toml", text, &struct{}{}); c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%s: Decode = %v, want %s", what, err, c.want)
		}
	}
}
