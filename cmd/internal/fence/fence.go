package fence

import (
	"fmt"
	"os"
	"path/filepath"

	"vipd/cmd/internal/lockfile"
	"vipd/dataplane/ownership"
)

// LockFile is the name, in run_dir, of the file that a vipd owner has locked.
const LockFile = "owner.lock"

// Remove takes the gate and the VIPs away, and returns what it did in words, or, with dry, what it would do.
func Remove(runDir string, dry bool) ([]string, error) {
	if os.Geteuid() != 0 {
		return nil, nil // it can have left nothing that this process could remove
	}
	if pid := lockfile.Holder(filepath.Join(runDir, LockFile)); pid != 0 {
		return nil, fmt.Errorf("vipd owner runs as process %d, and holds VIPs: systemctl stop vipd-owner", pid)
	}
	return ownership.Cleanup(dry)
}
