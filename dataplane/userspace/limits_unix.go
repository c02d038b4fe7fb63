//go:build unix

package userspace

import "syscall"

// maxDescriptors is how many descriptors the process may open. The soft limit is the hard one by now: the runtime
// raises it at start, and, unlike what Setrlimit would do here, gives child processes the old one.
func maxDescriptors() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<30 {
		return 1 << 20
	}
	return int(l.Cur)
}
