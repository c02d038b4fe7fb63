//go:build !unix

package atomicfile

import "os"

// own does nothing, because the system has no numeric owners.
func own(*os.File, os.FileInfo) error { return nil }

// syncFolder does nothing, because the system can't sync a folder.
func syncFolder(string) error { return nil }
