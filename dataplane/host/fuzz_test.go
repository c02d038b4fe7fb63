package host

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzLedger reads an arbitrary file as the host's ledger. After the ledger is saved and read
// again, it must be the same.
func FuzzLedger(f *testing.F) {
	f.Add([]byte(`{"boot":"b","namespace":"n","links":{"vipd0":true},"addresses":{"10.96.0.10":"vipd0","fd00:96::10":"lo"},` +
		`"leaving":{"10.96.0.10":["lo"]},"sysctls":{"net.ipv4.ip_forward":{"old":"0","set":"1"}}}`))
	f.Add([]byte(`{"boot":"b","namespace":"n","addresses":null,"sysctls":null}`))
	f.Add([]byte(`{"boot":"earlier","namespace":"n"}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, ledgerFile)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		l, _ := loadLedger(dir, "b", "n") // if the file can't be read, the ledger is empty
		l.setLink("vipd0")
		l.setSysctl("net.ipv4.ip_forward", sysctlRecord{Old: "0", Set: "1"})
		if err := l.save(); err != nil {
			t.Fatalf("saving the ledger %q: %v", text, err)
		}
		again, err := loadLedger(dir, "b", "n")
		if err != nil {
			t.Fatalf("reading the saved ledger of %q: %v", text, err)
		}
		if len(again.Addresses) != len(l.Addresses) || len(again.Sysctls) != len(l.Sysctls) || len(again.Links) != len(l.Links) {
			t.Errorf("ledger that was saved and read = %+v, want %+v", again, l)
		}
	})
}
