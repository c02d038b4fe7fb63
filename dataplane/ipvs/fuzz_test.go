package ipvs

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzLedger reads arbitrary lines, with and without checksums, as a ledger of virtual servers. A
// saved ledger must be unchanged when it is read again.
func FuzzLedger(f *testing.F) {
	f.Add("+ 10.96.0.10:80/tcp 30000 0 -")
	f.Add("+ [fd00:96::10]:80/udp 30000 1764423000000 b")
	f.Add("- 10.96.0.10:80/tcp")
	f.Add("t 900 0 120 0 300 0")
	f.Add("t -1 x")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, line string) {
		path := filepath.Join(dir, ledgerFile)
		header := withChecksum(strings.Join([]string{"vipd-ipvs-1", "b", "n"}, " "))
		if err := os.WriteFile(path, []byte(header+withChecksum(line)+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := openLedger(dir, "b", "n")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.rewrite(); err != nil {
			t.Fatalf("saving the ledger with line %q: %v", line, err)
		}
		again, err := openLedger(dir, "b", "n")
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(again.entries, l.entries) || again.timeouts != l.timeouts {
			t.Errorf("ledger that was saved and read = %v %v, want %v %v", again.entries, again.timeouts, l.entries, l.timeouts)
		}
	})
}
