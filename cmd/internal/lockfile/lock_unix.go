//go:build unix

package lockfile

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Take opens the lock file at path, makes it where it is missing, and takes the lock until the file is closed. The error
// is ErrHeld where another process has it.
func Take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock in run_dir (only vipd's user may, often root): %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("%w (it has %s)", ErrHeld, path), f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	if Lost(f) { // a cleanup has removed it between the two calls: another could lock a new one
		return nil, errors.Join(fmt.Errorf("%w (it has removed %s just now); try again", ErrHeld, path), f.Close())
	}
	return f, nil
}
