//go:build unix

package atomicfile

import (
	"errors"
	"os"
	"syscall"
)

// own gives f the owner and the group in info, unless it has them.
func own(f *os.File, info os.FileInfo) error {
	is, err := f.Stat()
	if err != nil {
		return err
	}
	want, have := info.Sys().(*syscall.Stat_t), is.Sys().(*syscall.Stat_t)
	if want.Uid == have.Uid && want.Gid == have.Gid {
		return nil
	}
	return f.Chown(int(want.Uid), int(want.Gid))
}

// syncFolder writes the names in a folder to disk. File systems that can't do that return EINVAL.
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
