package program

import (
	"os"
	"syscall"
	"testing"
)

// Save writes a file that a daemon may read at once. It waits for processes that are being forked,
// because an open descriptor would make the file look unfinished.
func Save(t testing.TB, path, text string) {
	t.Helper()
	Unshared(func() {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	})
}

// Unshared calls do, which opens or closes files and sockets, while this process does not fork a
// child. A forked process holds all open descriptors until it executes its program, which a busy
// machine may delay. A socket that is closed during a fork would still accept clients and keep its
// port.
func Unshared(do func()) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	do()
}
