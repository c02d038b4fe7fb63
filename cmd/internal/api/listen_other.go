//go:build !linux

package api

import "syscall"

// private does nothing, because only Linux can set the mode before the socket has a name. The umask
// applies instead.
func private(string, string, syscall.RawConn) error { return nil }
