//go:build !unix

package probe_test

import "os"

// makeFIFO makes a directory, because this system has no FIFOs, and a directory is not a regular
// file either.
func makeFIFO(path string) error { return os.Mkdir(path, 0o700) }
