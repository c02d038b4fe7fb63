//go:build !linux

package httpserve

import (
	"errors"
	"net"
)

// peer returns an error on this system, so only the socket's file mode restricts callers.
func peer(*net.UnixConn) (caller, error) { return caller{}, errors.ErrUnsupported }
