package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/cmd/internal/config"
)

// TestCleanupAfterKill: of the files of a vipd that was killed none stays, nor do its folders.
func TestCleanupAfterKill(t *testing.T) {
	conf := config.Default()
	conf.RunDir, conf.StateDir = filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "state")
	conf.API.Socket = filepath.Join(conf.RunDir, "vipd.sock")
	for _, dir := range []string{conf.RunDir, conf.StateDir} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{conf.API.Socket, filepath.Join(conf.RunDir, "vipd.lock"), filepath.Join(conf.RunDir, "handover.sock"), filepath.Join(conf.StateDir, "memory.json")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, err := holdRunDir(conf.RunDir, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, clean := range []cleaner{filesCleaner(conf), foldersCleaner(conf, h)} {
		if _, err := clean(t.Context(), false); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{conf.RunDir, conf.StateDir} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			left, _ := os.ReadDir(dir)
			t.Errorf("%s is left, with %v", dir, left)
		}
	}
}

// TestGrouped has many of a kind share a line, and keeps every other line as it is, in order.
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
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Without root there is one sentence, before anything is looked at.
func TestCleanupTakesRoot(t *testing.T) {
	s := newSession(t)
	for _, line := range [][]string{{"cleanup"}, {"cleanup", "--dry-run"}} {
		if code := s.run(t.Context(), line...); code != exitFailed {
			t.Errorf("%v exits with %d", line, code)
		}
	}
	const want = "vipctl: what vipd makes on a host is for root to see and to remove: sudo vipctl cleanup\n"
	if got := s.err.String(); got != strings.Repeat(want, 2) {
		t.Errorf("got %q", got)
	}
}
