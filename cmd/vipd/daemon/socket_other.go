//go:build !windows

package daemon

// lacksUnixSockets returns false, because all systems except Windows have Unix sockets.
func lacksUnixSockets(error) bool { return false }
