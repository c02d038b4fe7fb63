//go:build !unix

package probe_test

import "os"

// makeFIFO makes a folder: there are no FIFOs here, and it is not a regular file either.
func makeFIFO(path string) error { return os.Mkdir(path, 0o700) }
