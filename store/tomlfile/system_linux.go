package tomlfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// writersOf reports whether a process has the file open for writing. It requests a read lease,
// which the kernel grants to the owner and to root if no process has the file open for writing. It
// releases the lease immediately.
func writersOf(f *os.File) writers {
	raw, err := f.SyscallConn()
	if err != nil {
		return unknownWriters
	}
	found := unknownWriters
	err = raw.Control(func(fd uintptr) {
		_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK)
		switch {
		case err == nil:
			found = noWriters
			_, _ = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK) // closing the file also releases it
		case errors.Is(err, unix.EAGAIN):
			found = someWriters
		}
	})
	if err != nil {
		return unknownWriters
	}
	return found
}

// identityOf returns attributes that distinguish versions of a file without reading it.
func identityOf(info fs.FileInfo) identity {
	id := identity{size: info.Size(), modified: info.ModTime().UnixNano(), mode: info.Mode()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		id.device, id.inode = uint64(stat.Dev), stat.Ino
		id.changed = stat.Ctim.Nano()
	}
	return id
}
