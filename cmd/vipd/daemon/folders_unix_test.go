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
	"vipd/test/program"
)

// TestRefusesForeignFolders starts vipd with a directory that another user may write to. vipd must
// refuse to start, and must name the setting and the directory.
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
			t.Errorf("with a foreign %s_dir: error = %v, want an error that names the setting and the directory", name, err)
		}
	}
}

// TestRefusesForeignSocketFolder starts vipd with api.socket in a directory that all users may
// write to. vipd must refuse to start, and must name the setting.
func TestRefusesForeignSocketFolder(t *testing.T) {
	n := &node{t: t, dir: t.TempDir(), modes: noRoot()}
	n.log = slog.DiscardHandler
	path := filepath.Join(n.dir, "shared")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	program.Save(t, n.file(), strings.Replace(header, `"run/vipd.sock"`, `"shared/vipd.sock"`, 1)+web)
	_, err := n.make(false)
	if err == nil || !errors.Is(err, daemon.ErrConfig) || !strings.HasPrefix(err.Error(), "api.socket: other users can write to "+path) {
		t.Errorf("error = %v, want an error that names api.socket and its directory", err)
	}
}
