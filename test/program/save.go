package program

import (
	"os"
	"syscall"
	"testing"
)

// Save writes a file that a daemon may be told to read at once. While a process that has it open is being begun, it would seem to be still
// being written.
func Save(t testing.TB, path, text string) {
	t.Helper()
	Unshared(func() {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	})
}

// Unshared opens or closes files and sockets while this process begins no other one: that has all which are open, until it runs its program,
// and a busy machine may put that off. Clients of a socket that is closed meanwhile are taken, and reset then; its port is in use.
func Unshared(do func()) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	do()
}
