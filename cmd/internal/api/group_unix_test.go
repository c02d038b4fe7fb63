//go:build unix

package api

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// TestPermissionAdvice explains permission errors for sockets that belong to several groups. The
// message must name the group, unless it is root.
func TestPermissionAdvice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to change the group of files")
	}
	socket := filepath.Join(t.TempDir(), "d.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	daemon, err := user.LookupGroupId("1")
	if err != nil {
		t.Skip("needs a group with the number 1")
	}
	for gid, want := range map[int]string{
		0: "use sudo, or create the group vipd, join it, and restart vipd", 1: "use sudo, or join the socket's group " + daemon.Name + " and log in again",
	} {
		if err := os.Chown(socket, 0, gid); err != nil {
			t.Fatal(err)
		}
		err := NewClient(socket).explain(t.Context(), fmt.Errorf("dial: %w", fs.ErrPermission))
		if !strings.HasSuffix(err.Error(), ": "+want) || strings.Contains(err.Error(), "root") {
			t.Errorf("socket of group %d: error = %v, want %q", gid, err, want)
		}
	}
}
