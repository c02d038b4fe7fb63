//go:build !linux

package httpserve

import (
	"errors"
	"net"
)

// peer is not implemented on this system: the mode of the socket alone decides which users may
// call.
func peer(*net.UnixConn) (caller, error) { return caller{}, errors.ErrUnsupported }
