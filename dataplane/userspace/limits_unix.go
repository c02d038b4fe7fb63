//go:build unix

package userspace

import "syscall"

// maxDescriptors returns the number of descriptors that the process may open. The soft limit equals
// the hard one: the runtime raises it at start, and, unlike a Setrlimit here, restores the old one
// in child processes.
func maxDescriptors() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<30 {
		return 1 << 20
	}
	return int(l.Cur)
}
