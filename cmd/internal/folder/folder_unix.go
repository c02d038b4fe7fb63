//go:build unix

package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is the maximum number of symbolic links that are followed on a path, as in Linux.
const maxLinks = 40

// Check returns an error if a user other than root and this process's user could change the content
// of the directory at path. This is possible if the user owns the directory, a parent directory or
// a symbolic link on the path, or can write to one of these directories. Check accepts a parent
// directory that other users can write to if it is sticky, such as /tmp. A missing or unreachable
// path is not an error.
func Check(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("finding the folder %s: %w", path, err)
	}
	above := trusted
	if info, err := os.Stat("/"); err == nil {
		// In a user namespace, the host's root may have no user ID and appear as nobody, the user
		// that runs exec checks. So the owner of "/" may own parent directories, but not the
		// directory itself.
		above = func(user uint32) bool { return trusted(user) || user == ownerOf(info) }
	}
	return check(abs, above, maxLinks)
}

// CheckFiles returns an error if [Check] does, or if a file in the directory belongs to another
// user and has a name that vipd may use. The file may have been created before the directory's
// owner changed, and vipd would trust it.
func CheckFiles(path string) error {
	if err := Check(path); err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil // the code that uses it reports the error
	}
	for _, e := range entries {
		if e.IsDir() || !Uses(e.Name()) { // vipd uses no subdirectories
			continue
		}
		info, err := e.Info()
		if err != nil || trusted(ownerOf(info)) {
			continue
		}
		name := filepath.Join(path, e.Name())
		return fmt.Errorf("%s belongs to user %d, who could have put it there for vipd to read: remove it, or choose another folder", name, ownerOf(info))
	}
	return nil
}

// Make checks the directory at path, and creates it with mkdir. It then checks the directory and
// its files again, because another user may have created the directory after the first check. mkdir
// must accept an existing directory.
func Make(path string, mkdir func(path string) error) error {
	if err := Check(path); err != nil {
		return err
	}
	if err := mkdir(path); err != nil {
		return err
	}
	return CheckFiles(path)
}

// trusted reports whether a user may own vipd's directories: only root and this process's user may.
func trusted(user uint32) bool { return user == 0 || user == uint32(os.Geteuid()) }

// check implements Check. It checks each part of path, starting with "/". above reports whether a
// user may own the parent directories and the symbolic links. links is the maximum number of links
// to follow.
func check(path string, above func(user uint32) bool, links int) error {
	at := string(filepath.Separator)
	parts := strings.Split(strings.Trim(filepath.Clean(path), at), at)
	for i, part := range append([]string{""}, parts...) {
		at = filepath.Join(at, part)
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOTDIR): // the code that uses it reports the error
			return nil
		case err != nil:
			return fmt.Errorf("checking who can write to %s: %w", at, err)
		case i == len(parts) && !trusted(ownerOf(info)) && at != string(filepath.Separator), !above(ownerOf(info)):
			return fmt.Errorf("%s belongs to user %d, who could change vipd's files there: choose another folder, or remove its files and chown root %s", at, ownerOf(info), at)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(at)
			if err != nil || links == 0 {
				return fmt.Errorf("following the link %s: %w", at, errors.Join(err, syscall.ELOOP))
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(at), target)
			}
			return check(filepath.Join(append([]string{target}, parts[i:]...)...), above, links-1)
		case othersWrite(info) && (i == len(parts) || info.Mode()&fs.ModeSticky == 0):
			return fmt.Errorf("other users can write to %s, and could change vipd's files there: chmod go-w %s, or choose another folder", at, at)
		}
	}
	return nil
}

// othersWrite reports whether all users may write to a file, or a group other than root's group
// may. If this process is not root, its own group may also write.
func othersWrite(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	private := ok && (stat.Gid == 0 || os.Geteuid() != 0 && int(stat.Gid) == os.Getegid())
	return info.Mode().Perm()&0o002 != 0 || info.Mode().Perm()&0o020 != 0 && !private
}

func ownerOf(info fs.FileInfo) uint32 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Uid
	}
	return 0
}
