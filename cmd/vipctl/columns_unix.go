//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// columns is how many columns a terminal has; 0 means unknown.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
