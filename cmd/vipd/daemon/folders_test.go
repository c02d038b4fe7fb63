package daemon_test

import (
	"os"
	"path/filepath"
	"testing"

	"vipd/cmd/internal/folder"
)

// TestFilesAreChecked starts vipd, and lists the files in run_dir and state_dir. The next vipd that
// starts must check who owns each of these files.
func TestFilesAreChecked(t *testing.T) {
	n := startNode(t, "")
	for _, dir := range []string{"run", "state"} {
		entries, err := os.ReadDir(filepath.Join(n.dir, dir))
		if err != nil || len(entries) == 0 {
			t.Fatalf("files in %s = %d, error = %v, want at least one", dir, len(entries), err)
		}
		for _, e := range entries {
			if !e.IsDir() && !folder.Uses(e.Name()) {
				t.Errorf("%s/%s: owner is checked = false, want true", dir, e.Name())
			}
		}
	}
}
