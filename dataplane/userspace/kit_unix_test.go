//go:build unix

package userspace

import "syscall"

var errReset error = syscall.ECONNRESET
