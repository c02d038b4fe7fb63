//go:build !unix

package atomicfile

import "os"

// own does nothing, because the system has no numeric owners.
func own(*os.File, os.FileInfo) error { return nil }
