package program

import (
	"os"
	"syscall"
	"testing"
)

// Save writes a file that a daemon may be told to read at once. No process that this one begins meanwhile inherits the open file:
// until such a process runs its program, the file would seem to be still being written.
func Save(t testing.TB, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
