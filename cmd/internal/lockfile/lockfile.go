package lockfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ErrHeld means that another process holds the lock.
var ErrHeld = errors.New("another vipd is already running, or a cleanup is in progress")

// Acquire opens or creates the lock file at path, and locks it until the file is closed. If another
// process holds the lock, the error is ErrHeld. If that process is dying, Acquire waits until it is
// gone.
func Acquire(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|noFollow, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock in run_dir (vipd's user, often root, must be able to write there): %w", err)
	}
	var lockErr error
	held := Await(func() (held bool) {
		held, lockErr = lock(f)
		return held
	}, func() int { return Holder(path) })
	switch err := lockErr; {
	case held:
		return nil, errors.Join(fmt.Errorf("%w (%s is locked)", ErrHeld, path), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	case Lost(f): // a cleanup removed the file before it was locked, so another process could lock a new file
		return nil, errors.Join(fmt.Errorf("%w (%s was just removed); try again", ErrHeld, path), f.Close())
	}
	return f, nil
}

// Path returns the lock file's path in a run_dir.
func Path(runDir string) string { return filepath.Join(runDir, "vipd.lock") }

// Lost reports whether a locked file was removed or replaced. If so, another process could lock a
// new file at the same path.
func Lost(f *os.File) bool {
	held, err := f.Stat()
	current, err2 := os.Stat(f.Name())
	return err != nil || err2 != nil || !os.SameFile(held, current)
}

// Note replaces the lock file's content with text about the lock's holder. The text remains after
// the holder exits, until the next holder calls Note.
func Note(f *os.File, text string) error {
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
	}
	if err != nil {
		return fmt.Errorf("writing to the lock: %w", err)
	}
	return nil
}

// Noted returns the text that Note wrote to the lock file at path. It returns "" if the file is
// empty or can't be read.
func Noted(path string) string {
	const maxNote = 1 << 10
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // the file was only read
	text, _ := io.ReadAll(io.LimitReader(f, maxNote))
	return strings.TrimSpace(string(text))
}
