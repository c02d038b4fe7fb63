package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vipd/test/program"
)

// TestFoldersUnderUmask creates vipd's directories with the umask of vipd's systemd unit. Users in
// the socket's group must still reach the socket.
func TestFoldersUnderUmask(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	program.Save(t, n.file(), strings.Replace(header, `socket = "run/vipd.sock"`, `socket = "sockets/deep/vipd.sock"`, 1))
	old := syscall.Umask(0o077)
	t.Cleanup(func() { syscall.Umask(old) })
	n.launch()
	t.Cleanup(func() { n.stop() })
	for _, folder := range []string{"run", "sockets", "sockets/deep"} {
		info, err := os.Stat(filepath.Join(n.dir, folder))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode = %v, want 755", folder, info.Mode())
		}
	}
}
