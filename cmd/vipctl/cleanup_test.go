package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
)

// TestGrouped groups many lines that differ only in an address. These lines must be joined, and all
// other lines must remain in order.
func TestGrouped(t *testing.T) {
	var done, want []string
	for i := range 10000 {
		done = append(done, fmt.Sprintf("remove address 10.96.%d.%d from lo", i>>8, i&255))
	}
	want = append(want, "remove address 10.96.0.0, 10.96.0.1, 10.96.0.2 and 9997 more from lo")
	for i := range 10 {
		line := fmt.Sprintf("remove address fd00::%d from vipd0", i)
		done, want = append(done, line), append(want, line)
	}
	done, want = append(done, "destroy ipset vipd-held4"), append(want, "destroy ipset vipd-held4")
	for i := range 11 {
		done = append(done, fmt.Sprintf("delete virtual server [fd00::%d]:80/tcp", i))
	}
	want = append(want, "delete virtual server [fd00::0]:80/tcp, [fd00::1]:80/tcp, [fd00::2]:80/tcp and 8 more")
	for range 12 {
		done, want = append(done, "remove file x"), append(want, "remove file x")
	}
	if d := cmp.Diff(want, grouped(done)); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
}

// TestCleanupNeedsRoot runs cleanup as a user other than root. Each command must fail with a single
// error sentence.
func TestCleanupNeedsRoot(t *testing.T) {
	s := newSession(t)
	for _, line := range [][]string{{"cleanup"}, {"cleanup", "--dry-run"}} {
		if code := s.run(t.Context(), line...); code != cli.ExitFailed {
			t.Errorf("%v: exit code = %d, want 1", line, code)
		}
	}
	const want = "vipctl: only root can see and remove vipd's objects: sudo vipctl cleanup\n"
	if got := s.err.String(); got != strings.Repeat(want, 2) {
		t.Errorf("stderr = %q, want one sentence about root for each command", got)
	}
}

// TestCleanupOfFiles cleans up after a killed vipd. The sockets, the saved state and their
// directories must be removed. A regular file at the path in api.socket must remain.
func TestCleanupOfFiles(t *testing.T) {
	t.Chdir(t.TempDir()) // a socket's path must be short
	conf := config.Default()
	conf.RunDir, conf.StateDir, conf.API.Socket = "run", "state", "precious"
	if err := os.Mkdir(conf.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{api.OwnerSocket, api.HandoverSocket} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(conf.RunDir, name)})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false) // the file remains, as after a kill
		_ = l.Close()
	}
	if err := os.WriteFile(conf.API.Socket, []byte("somebody's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(conf.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	want := []string{"remove file run/owner.sock", "remove file run/handover.sock"}
	for _, name := range []string{
		"overrides.json", "memory.json", "health.json", "healthlease.json", "etcd.state", "files.state", "pending.json", "agents.json", "names.json", "ownership.json",
	} {
		if err := os.WriteFile(filepath.Join(conf.StateDir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		want = append(want, "remove file state/"+name)
	}
	var done []string
	for _, clean := range []cleaner{cleanFiles, cleanFolders} {
		removed, err := clean(t.Context(), conf, false)
		if err != nil {
			t.Error(err)
		}
		done = append(done, removed...)
	}
	want = append(want, "remove folder run", "remove folder state")
	if d := cmp.Diff(want, done); d != "" {
		t.Errorf("actions (-want +got):\n%s", d)
	}
	if _, err := os.Stat(conf.API.Socket); err != nil {
		t.Error(err)
	}
}
