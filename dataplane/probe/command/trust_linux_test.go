package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vipd/dataplane/probe/command"
)

// TestTrusted creates programs that other users could replace in several ways, and programs that
// they could not replace. Only programs that they could not replace may be trusted and run, even
// through symbolic links.
func TestTrusted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files to other users")
	}
	for _, c := range []struct {
		name    string
		change  func(folder, program string) error
		refused string
	}{
		{"of root", func(string, string) error { return nil }, ""},
		{"file of another user", func(_, program string) error { return os.Chown(program, 65534, 0) }, "belongs to user 65534"},
		{"folder of another user", func(folder, _ string) error { return os.Chown(folder, 65534, 0) }, "belongs to user 65534"},
		{"file writable by all", func(_, program string) error { return os.Chmod(program, 0o757) }, "other users may write to"},
		{"folder writable by all", func(folder, _ string) error { return os.Chmod(folder, 0o757) }, "other users may write to"},
		{"sticky folder", func(folder, _ string) error { return os.Chmod(folder, 0o777|os.ModeSticky) }, ""},
		{"file writable by root's group", func(_, program string) error { return os.Chmod(program, 0o775) }, ""},
		{"file writable by another group", func(_, program string) error {
			if err := os.Chown(program, 0, 65534); err != nil {
				return err
			}
			return os.Chmod(program, 0o775)
		}, "other users may write to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "hooks")
			program, link := filepath.Join(folder, "program"), filepath.Join(t.TempDir(), "link")
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(program, link); err != nil {
				t.Fatal(err)
			}
			if err := c.change(folder, program); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{program, link} {
				err := command.Trusted(path)
				_, run := command.Command{Args: []string{path}, User: "root"}.Run(t.Context())
				if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) || (run != nil) != (err != nil) {
					t.Errorf("%s: Trusted = %v, Run = %v; want error %q", path, err, run, c.refused)
				}
			}
		})
	}
}
