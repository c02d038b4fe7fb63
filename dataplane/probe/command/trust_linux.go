package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Trusted returns an error unless only root and this process's user can replace the file at path.
// The file, its directories and the targets of symbolic links must belong to one of these users,
// and no other user may be able to write to them. In a sticky directory, such as /tmp, users can't
// replace other users' files. A missing file is not an error.
func Trusted(path string) error {
	const maxLinks = 40 // the kernel's limit
	return trusted(filepath.Clean(path), maxLinks)
}

func trusted(path string, links int) error {
	if links == 0 {
		return fmt.Errorf("%s has too many symbolic links", path)
	}
	if folder := filepath.Dir(path); folder != path {
		if err := trusted(folder, links); err != nil {
			return err
		}
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // starting a missing program fails with the system's own error
	case err != nil:
		return err
	}
	if err := checkOwner(path, info); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return err
	}
	next, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(next) {
		next = filepath.Join(filepath.Dir(path), next)
	}
	return trusted(filepath.Clean(next), links-1)
}

// checkOwner returns an error if other users could replace or modify the file that info describes.
func checkOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if user := os.Geteuid(); stat.Uid != 0 && int(stat.Uid) != user {
		return fmt.Errorf("%s belongs to user %d, who could replace it: it must belong to root%s (chown root %s)", path, stat.Uid, orUser(user), path)
	}
	sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	if info.Mode()&fs.ModeSymlink != 0 || sticky {
		return nil
	}
	const group, others = 0o020, 0o002
	byGroup := info.Mode().Perm()&group != 0 && stat.Gid != 0 && int(stat.Gid) != os.Getegid()
	if byGroup || info.Mode().Perm()&others != 0 {
		return fmt.Errorf("other users may write to %s, but only its owner should (chmod go-w %s)", path, path)
	}
	return nil
}

func orUser(user int) string {
	if user == 0 {
		return ""
	}
	return fmt.Sprintf(" or to user %d", user)
}
