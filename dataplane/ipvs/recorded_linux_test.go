package ipvs

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCleanupWithoutIPVS runs Cleanup on a kernel without IPVS. Cleanup must remove the ledger, and
// nothing else.
func TestCleanupWithoutIPVS(t *testing.T) {
	dir := t.TempDir()
	if d, err := New(t.Context(), Options{RunDir: dir}); err == nil {
		_ = d.Close(t.Context(), true)
		t.Skip("needs a kernel without IPVS")
	}
	l, err := ledgerHere(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.set(key(0), record{drain: time.Minute})
	l.setTimeouts([3]timeoutChange{{old: time.Minute, set: time.Hour}})
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, ledgerFile+".123") // left by a process that was killed while it wrote the ledger
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		done, err := Cleanup(t.Context(), dir, dry)
		if len(done) != 1 || done[0] != "remove file "+half {
			t.Errorf("Cleanup, dry = %v: steps = %q, want the removal of the incomplete file", dry, done)
		}
		if _, err := os.Stat(half); dry != (err == nil) {
			t.Errorf("Cleanup, dry = %v: Stat of the incomplete file: error = %v, want it removed unless dry", dry, err)
		}
		_, missing := os.Stat(filepath.Join(dir, ledgerFile))
		if err != nil || dry == os.IsNotExist(missing) {
			t.Errorf("Cleanup, dry = %v: steps = %q, error = %v; Stat of the ledger: error = %v; want it removed unless dry", dry, done, err, missing)
		}
	}
}
