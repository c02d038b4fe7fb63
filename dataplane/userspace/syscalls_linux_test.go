package userspace

import (
	"testing"

	"golang.org/x/sys/unix"
)

// readDeep reads from a descriptor after a number of nested calls. It returns the sum of the first
// and last byte.
//
//go:noinline
func readDeep(fd, depth int) byte {
	if depth > 0 {
		return readDeep(fd, depth-1)
	}
	return readOne(fd)
}

//go:noinline
func readOne(fd int) byte {
	var b [8]byte // must stay on the stack
	if n, errno := rawRead(fd, b[:]); n != len(b) || errno != 0 {
		return 0
	}
	return b[0] + b[7] // the value that was read, in either byte order
}

// TestRawCallsKeepTheStack makes system calls that read into local variables, at many stack depths.
// The kernel must write to these variables even if the stack has no space for another call.
func TestRawCallsKeepTheStack(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for depth := range 1000 {
		if _, err := unix.Write(fd, []byte{0, 0, 0, 0, 0, 0, 0, 1}); err != nil {
			t.Fatal(err)
		}
		got := make(chan byte)
		go func() { got <- readDeep(fd, depth) }() // a new goroutine has a small stack
		if n := <-got; n != 1 {
			t.Fatalf("depth %d: byte = %d, want 1", depth, n)
		}
	}
}
