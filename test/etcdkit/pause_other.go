//go:build !unix

package etcdkit

import "syscall"

// pause and resume are no signals here, and sending them fails.
const (
	pause  = syscall.Signal(-1)
	resume = syscall.Signal(-1)
)
