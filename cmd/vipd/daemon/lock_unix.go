//go:build unix

package daemon

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// takeLock makes sure that one vipd runs on a run_dir. The kernel lets go of the lock with the process, however it ends.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock in run_dir: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("another vipd runs already (it has %s); stop it, or give this one another run_dir", path), f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	return f, nil
}
