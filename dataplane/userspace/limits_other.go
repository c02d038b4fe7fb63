//go:build !unix

package userspace

// maxDescriptors is a number that is well within what the system can do.
func maxDescriptors() int { return 1 << 16 }
