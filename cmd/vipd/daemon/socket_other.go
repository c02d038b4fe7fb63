//go:build !windows

package daemon

// lacksUnixSockets returns false, because all other systems have Unix sockets.
func lacksUnixSockets(error) bool { return false }
