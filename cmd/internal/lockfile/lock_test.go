package lockfile

import (
	"errors"
	"path/filepath"
	"testing"
)

// TestTake acquires a lock twice. The second attempt must return ErrHeld until the first file is
// closed.
func TestTake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vipd.lock")
	first, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(path); !errors.Is(err, ErrHeld) {
		t.Errorf("while the lock is held: error = %v, want ErrHeld", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Acquire(path)
	if err != nil {
		t.Fatalf("after the lock is closed: error = %v, want none", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
