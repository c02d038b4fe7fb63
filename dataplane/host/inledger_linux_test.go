package host

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// TestInLedger writes a ledger of the current boot. InLedger must return the addresses in this
// ledger. If the ledger is missing, InLedger must return nothing.
func TestInLedger(t *testing.T) {
	dir := t.TempDir()
	l, err := readLedger(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[netip.Addr]string{netip.MustParseAddr("10.96.0.10"): "lo", netip.MustParseAddr("fd00:96::10"): "vipd0"}
	for a, device := range want {
		l.setAddress(a, device)
	}
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	if got, err := InLedger(dir); err != nil || !maps.Equal(got, want) {
		t.Errorf("InLedger = %v, %v; want %v", got, err, want)
	}
	if got, err := InLedger(t.TempDir()); err != nil || len(got) > 0 {
		t.Errorf("missing ledger: InLedger = %v, %v; want no addresses", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, ledgerFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := InLedger(dir); err == nil {
		t.Errorf("broken ledger: InLedger = %v, want an error", got)
	}
}
