//go:build unix

package userspace

import "syscall"

// maxDescriptors returns the number of descriptors that the process may open. This is the soft
// limit, which the Go runtime raises to the hard limit at startup. For child processes the runtime
// restores the original limit, which a call of Setrlimit here would prevent.
func maxDescriptors() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<30 {
		return 1 << 20
	}
	return int(l.Cur)
}
