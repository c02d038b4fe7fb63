package userspace

import (
	"errors"
	"fmt"
	"syscall"

	"vipd/balancer"
)

// fit restricts a socket at the VIP to the clients that the configuration allows. For TCP it also
// sets the segment size that the socket announces.
func fit(fd uintptr, c *config) error {
	if c.Key.Proto == balancer.TCP {
		if err := announce(fd, c.MSS); err != nil {
			return err
		}
	}
	return filter(fd, c)
}

func refit(s syscall.Conn, c *config) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	if err := control(raw, func(fd uintptr) error { return fit(fd, c) }); err != nil {
		return fmt.Errorf("setting up the socket of %s: %w", c.Key, err)
	}
	return nil
}

func control(raw syscall.RawConn, do func(fd uintptr) error) error {
	var failed error
	return errors.Join(raw.Control(func(fd uintptr) { failed = do(fd) }), failed)
}
