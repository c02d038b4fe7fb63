package lockfile

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHolder acquires and releases a real lock. Holder must return this process only while it holds
// the lock.
func TestHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vipd.lock")
	if pid := Holder(path); pid != 0 {
		t.Errorf("missing file: holder = %d, want 0", pid)
	}
	f, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if pid := Holder(path); pid != os.Getpid() {
		t.Errorf("holder = %d, want this process, %d", pid, os.Getpid())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if pid := Holder(path); pid != 0 {
		t.Errorf("free lock: holder = %d, want 0", pid)
	}
}

// TestHolderIn parses text in the format of /proc/locks. It must return neither a holder named
// vipctl nor a process that only waits for the lock.
func TestHolderIn(t *testing.T) {
	const locks = `1: POSIX  ADVISORY  WRITE 5 00:19:77 0 EOF
2: FLOCK  ADVISORY  WRITE 6 00:19:78 0 EOF
3: FLOCK  ADVISORY  WRITE 7 00:19:77 0 EOF
3: -> FLOCK  ADVISORY  WRITE 8 00:19:77 0 EOF
`
	for name, want := range map[string]int{"vipd": 7, "": 7, "vipctl": 0} {
		if got := holderIn(locks, "00:19:77", func(int) string { return name }); got != want {
			t.Errorf("program %q: holder = %d, want %d", name, got, want)
		}
	}
}
