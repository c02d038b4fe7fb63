//go:build !linux

package httpserve

import (
	"errors"
	"net"
)

// peer returns an error on this system, so only the mode of the socket restricts callers.
func peer(*net.UnixConn) (caller, error) { return caller{}, errors.ErrUnsupported }
