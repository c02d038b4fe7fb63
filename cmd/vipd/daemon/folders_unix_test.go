//go:build unix

package daemon_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vipd/cmd/vipd/daemon"
)

// TestRefusesForeignFolders starts vipd with folders that another user could change: it refuses, and names the setting and the folder.
func TestRefusesForeignFolders(t *testing.T) {
	for _, name := range []string{"run", "state"} {
		n := &node{t: t, dir: t.TempDir(), modes: noRoot()}
		n.log = slog.DiscardHandler
		n.write(web)
		path := filepath.Join(n.dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		_, err := n.make(false)
		if err == nil || !errors.Is(err, daemon.ErrConfig) || !strings.HasPrefix(err.Error(), name+"_dir: other users can write to "+path) {
			t.Errorf("%s_dir: %v", name, err)
		}
	}
}
