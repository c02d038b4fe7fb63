//go:build !windows

package daemon

// lacksUnixSockets returns false: every other system has Unix sockets.
func lacksUnixSockets(error) bool { return false }
