//go:build !unix

package etcdkit

import "syscall"

// pause and resume are not signals on this system, so sending them fails.
const (
	pause  = syscall.Signal(-1)
	resume = syscall.Signal(-1)
)
