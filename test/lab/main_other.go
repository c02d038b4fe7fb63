//go:build !linux

package lab

import (
	"os"
	"testing"
)

// Main runs the tests without network namespaces, which this system lacks.
func Main(m Tests) { os.Exit(m.Run()) }

// Require skips the test.
func Require(t testing.TB) {
	t.Helper()
	t.Skip("needs Linux to make network namespaces")
}

// NeedIPVS skips the test.
func NeedIPVS(t testing.TB) {
	t.Helper()
	t.Skip("needs Linux to use IPVS")
}
