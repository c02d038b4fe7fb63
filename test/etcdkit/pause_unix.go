//go:build unix

package etcdkit

import "syscall"

// pause and resume are the signals that stop and continue a process.
const (
	pause  = syscall.SIGSTOP
	resume = syscall.SIGCONT
)
