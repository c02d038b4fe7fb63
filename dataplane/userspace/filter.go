package userspace

import (
	"fmt"
	"syscall"
)

// refilter is filter for a socket that is open.
func refilter(s syscall.Conn, c *config) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = filter(fd, c) }); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("filtering the clients of %s: %w", c.Key, failed)
	}
	return nil
}
