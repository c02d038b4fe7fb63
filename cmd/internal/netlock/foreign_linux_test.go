package netlock

import (
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/test/lab"
)

// TestForeignHolder occupies the lock's name as an unprivileged user. Acquire must return a
// ForeignError with that user.
func TestForeignHolder(t *testing.T) {
	lab.New(t) // gives this test its own network namespace
	if os.Getuid() != 0 {
		t.Skip("needs root to listen as another user")
	}
	const nobody = 65534
	listener := make(chan net.Listener)
	namespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = namespace.Close() }()
	go func() {
		runtime.LockOSThread() // when the goroutine ends, its thread, which runs as the other user, also ends
		var opened net.Listener
		if unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET) == nil {
			if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno == 0 {
				opened, _ = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
			}
		}
		listener <- opened
	}()
	squatter := <-listener
	if squatter == nil {
		t.Fatal("other user's listener = nil, want a socket")
	}
	defer func() { _ = squatter.Close() }()
	lock, err := Acquire(Holder{})
	foreign, ok := errors.AsType[*ForeignError](err)
	if !ok || foreign.UID != nobody || lock != nil {
		t.Errorf("Acquire = %v, %v, want a ForeignError with user %d", lock, err, nobody)
	}
}
