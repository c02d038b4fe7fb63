//go:build unix

package atomicfile

import (
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
