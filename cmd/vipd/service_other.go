//go:build !windows

package main

import (
	"fmt"
	"io"
)

// runService is only available on Windows.
func runService(_ []string, stderr io.Writer) int {
	fmt.Fprintf(stderr, "vipd %s is only for the Windows service manager; other service managers, such as systemd, run plain vipd\n", serviceVerb)
	return exitUsage
}
