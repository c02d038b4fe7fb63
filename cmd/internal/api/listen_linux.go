package api

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// private sets a socket's mode before the socket has a name. The kernel creates the socket's file
// with this mode (unix_bind_bsd in net/unix/af_unix.c).
func private(_, _ string, c syscall.RawConn) error {
	var failed error
	if err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return failed
}
