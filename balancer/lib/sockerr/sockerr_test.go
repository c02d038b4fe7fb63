package sockerr

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestIs causes errors on the current operating system. Is must recognise them.
func TestIs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if _, err := net.Listen("tcp", l.Addr().String()); !Is(err, syscall.EACCES, syscall.EADDRINUSE) || Is(err, syscall.ECONNREFUSED) {
		t.Errorf("second listener: error = %v, want EADDRINUSE or EACCES", err)
	}
	_ = l.Close()
	if _, err := net.Dial("tcp", l.Addr().String()); !Is(err, syscall.ECONNREFUSED) || Is(err, syscall.ECONNRESET, syscall.EADDRINUSE) {
		t.Errorf("connection to a closed port: error = %v, want ECONNREFUSED", err)
	}
	if Is(nil, syscall.ECONNREFUSED) || Is(errors.New("connection refused"), syscall.ECONNREFUSED) {
		t.Error("Is() = true for an error that is not a system error, want false")
	}
	if n := numberOn("windows", syscall.ECONNREFUSED); n != 10061 {
		t.Errorf("ECONNREFUSED on Windows = %d, want 10061", n)
	}
}
