//go:build !unix

package probe_test

import "os"

// makeFIFO makes a directory, because this system has no FIFOs. Like a FIFO, a directory is not a
// regular file.
func makeFIFO(path string) error { return os.Mkdir(path, 0o700) }
