package daemon

import (
	"errors"

	"golang.org/x/sys/windows"
)

// lacksUnixSockets reports whether listening failed because this version of Windows lacks Unix
// sockets.
func lacksUnixSockets(err error) bool { return errors.Is(err, windows.WSAEAFNOSUPPORT) }
