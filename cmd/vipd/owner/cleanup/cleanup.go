package cleanup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/lockfile"
	"vipd/dataplane/failover"
)

// LockFile is the name of a file in run_dir. A running vipd owner holds a lock on it.
const LockFile = "owner.lock"

// patience limits how long a vipd owner may take to release its VIPs and exit.
const patience = 10 * time.Second

// Stop stops a running vipd owner, which first releases its VIPs. It returns a description of each
// step. If dry is set, it changes nothing.
func Stop(ctx context.Context, runDir string, dry bool) ([]string, error) {
	path := filepath.Join(runDir, LockFile)
	pid := lockfile.Holder(path)
	if pid == 0 {
		return nil, nil
	}
	done := []string{fmt.Sprintf("stop vipd owner, process %d", pid)}
	if dry {
		return done, nil
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Signal(syscall.SIGTERM)
	}
	if err != nil {
		return nil, fmt.Errorf("stopping vipd owner, process %d (as root: systemctl stop vipd-owner): %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for lockfile.Holder(path) == pid {
		if !wake.Sleep(ctx, 20*time.Millisecond) {
			return nil, fmt.Errorf("vipd owner, process %d, has not exited after SIGTERM: systemctl kill -s KILL vipd-owner", pid)
		}
	}
	return done, nil
}

// Remove removes the gate and the VIPs. It returns a description of each step. If dry is set, it
// changes nothing.
func Remove(runDir string, dry bool) ([]string, error) {
	if os.Geteuid() != 0 {
		return nil, nil // this process could not have removed anything
	}
	if pid := lockfile.Holder(filepath.Join(runDir, LockFile)); pid != 0 && !dry {
		return nil, fmt.Errorf("vipd owner runs as process %d, and holds VIPs: systemctl stop vipd-owner", pid)
	}
	return failover.Cleanup(dry)
}
