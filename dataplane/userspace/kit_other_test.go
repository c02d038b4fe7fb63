//go:build !unix

package userspace

import "syscall"

var errReset error = syscall.Errno(10054) // WSAECONNRESET
