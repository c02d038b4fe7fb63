//go:build !unix

package lockfile

import (
	"fmt"
	"os"
	"runtime"
)

// Take says that vipd does not run here.
func Take(string) (*os.File, error) {
	return nil, fmt.Errorf("locking run_dir: vipd does not run on %s", runtime.GOOS)
}
