//go:build !unix

package api

// groupOf returns "": files have no group here.
func groupOf(string) string { return "" }
