package lockfile

import (
	"errors"
	"os"
)

// ErrHeld means that another process has the lock.
var ErrHeld = errors.New("another vipd runs already, or a cleanup is under way")

// Lost reports whether a lock's file was removed or replaced, so that another process could take a lock of the same name.
func Lost(f *os.File) bool {
	have, err := f.Stat()
	there, err2 := os.Stat(f.Name())
	return err != nil || err2 != nil || !os.SameFile(have, there)
}
