//go:build !unix

package api

// groupOf returns "", because files have no group on this system.
func groupOf(string) string { return "" }
