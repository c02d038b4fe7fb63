package ipvs

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCleanupWithoutIPVS: where IPVS is gone from the kernel, or was never there, nothing of it is left but the ledger,
// whose word must not be taken for that on what others make later.
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
	l.setTimeouts([3]changed{{old: time.Minute, set: time.Hour}})
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		done, err := Cleanup(t.Context(), dir, dry)
		_, missing := os.Stat(filepath.Join(dir, ledgerFile))
		if err != nil || len(done) > 0 || dry == os.IsNotExist(missing) {
			t.Errorf("dry %v: %q, %v; the ledger: %v", dry, done, err, missing)
		}
	}
}
