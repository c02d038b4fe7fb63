//go:build unix

package atomicfile

import (
	"errors"
	"os"
	"syscall"
)

// own sets the owner and the group of f to the values in info, unless they are equal.
func own(f *os.File, info os.FileInfo) error {
	current, err := f.Stat()
	if err != nil {
		return err
	}
	want, have := info.Sys().(*syscall.Stat_t), current.Sys().(*syscall.Stat_t)
	if want.Uid == have.Uid && want.Gid == have.Gid {
		return nil
	}
	return f.Chown(int(want.Uid), int(want.Gid))
}

// syncFolder syncs the entries of a folder to disk. It ignores EINVAL, because some file systems
// can't sync folders.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err = f.Sync(); errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, f.Close())
}
