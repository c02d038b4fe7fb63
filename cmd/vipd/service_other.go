//go:build !windows

package main

import (
	"fmt"
	"io"
)

// runService is only available on Windows.
func runService(_ []string, stderr io.Writer) int {
	fmt.Fprintf(stderr, "vipd %s is for the service manager of Windows; systemd and other managers of services start vipd without it\n", serviceVerb)
	return exitUsage
}
