//go:build !unix

package userspace

// maxDescriptors returns a number that every system supports.
func maxDescriptors() int { return 1 << 16 }
