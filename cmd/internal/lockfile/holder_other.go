//go:build !linux

package lockfile

// Holder knows of nobody.
func Holder(string) int { return 0 }
