//go:build !linux

package runlock

// Holder knows of nobody.
func Holder(string) int { return 0 }
