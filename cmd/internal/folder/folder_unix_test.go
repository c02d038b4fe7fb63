//go:build unix

package folder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheck checks directories that only trusted users can change, and directories that another
// user could change. Only the latter must be rejected.
func TestCheck(t *testing.T) {
	const stranger = 54321
	root := os.Geteuid() == 0
	for _, c := range []struct {
		name  string
		make  func(t *testing.T, dir string) (path string)
		chown bool
		want  string // a part of the error, with DIR for the directory; "" means no error
	}{
		{name: "its own", make: func(_ *testing.T, dir string) string { return dir }},
		{name: "missing", make: func(_ *testing.T, dir string) string { return dir + "/run/vipd" }},
		{name: "writable", want: "other users can write to DIR,", make: func(t *testing.T, dir string) string { chmod(t, dir, 0o777); return dir }},
		{name: "writable above", want: "other users can write to DIR,", make: func(t *testing.T, dir string) string { chmod(t, dir, 0o777); return dir + "/run/vipd" }},
		{name: "sticky above", make: func(t *testing.T, dir string) string { chmod(t, dir, 0o777|os.ModeSticky); return made(t, dir+"/vipd") }},
		{name: "sticky itself", want: "other users can write to DIR,", make: func(t *testing.T, dir string) string { chmod(t, dir, 0o777|os.ModeSticky); return dir }},
		{name: "of a stranger", chown: true, want: "DIR belongs to user 54321", make: func(t *testing.T, dir string) string { chown(t, dir, stranger, 0); return dir }},
		{name: "of a stranger above", chown: true, want: "DIR belongs to user 54321", make: func(t *testing.T, dir string) string {
			path := made(t, dir+"/vipd")
			chown(t, dir, stranger, 0)
			return path
		}},
		{name: "writable for a group", chown: true, want: "other users can write to DIR,", make: func(t *testing.T, dir string) string {
			chown(t, dir, 0, stranger)
			chmod(t, dir, 0o775)
			return dir
		}},
		{name: "a link to a writable one", want: "other users can write to DIR/there,", make: func(t *testing.T, dir string) string {
			chmod(t, made(t, dir+"/there"), 0o777)
			link(t, "there", dir+"/link")
			return dir + "/link/vipd"
		}},
		{name: "a stranger's link", chown: true, want: "DIR/link belongs to user 54321", make: func(t *testing.T, dir string) string {
			made(t, dir+"/there")
			link(t, dir+"/there", dir+"/link")
			if err := os.Lchown(dir+"/link", stranger, 0); err != nil {
				t.Fatal(err)
			}
			return dir + "/link"
		}},
		{name: "a stranger's file", chown: true, want: "DIR/host.json belongs to user 54321", make: func(t *testing.T, dir string) string {
			return planted(t, dir, "host.json", stranger)
		}},
		{name: "a stranger's folder inside", chown: true, make: func(t *testing.T, dir string) string { // vipd does not use subdirectories
			chown(t, made(t, dir+"/there"), stranger, 0)
			return dir
		}},
		{name: "a stranger's file that vipd does not use", chown: true, make: func(t *testing.T, dir string) string { return planted(t, dir, "core.123", stranger) }},
		{name: "our file", make: func(t *testing.T, dir string) string { return planted(t, dir, "host.json", os.Geteuid()) }},
		{name: "a loop", want: "following the link DIR/loop", make: func(t *testing.T, dir string) string { link(t, "loop", dir+"/loop"); return dir + "/loop" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.chown && !root {
				t.Skip("needs root to give files to another user")
			}
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			err = CheckFiles(c.make(t, dir))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(c.want, "DIR", dir))) {
				t.Errorf("error = %v, want %q", err, c.want)
			}
		})
	}
}

// TestMake creates directories that are missing during the first check. Make must reject a
// directory if another user creates it, or a file in it, after the first check.
func TestMake(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files to another user")
	}
	const stranger = 54321
	for name, c := range map[string]struct {
		mkdir func(path string) error
		want  string
	}{
		"ours":       {func(path string) error { return os.Mkdir(path, 0o755) }, ""},
		"foreign":    {func(path string) error { chown(t, made(t, path), stranger, 0); return nil }, "/vipd belongs to user 54321"},
		"with files": {func(path string) error { planted(t, made(t, path), "host.json", stranger); return nil }, "/vipd/host.json belongs to user 54321"},
	} {
		err := Make(t.TempDir()+"/vipd", c.mkdir)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error = %v, want %q", name, err, c.want)
		}
	}
}

// TestCheckInNamespace checks directories of user 65534. In a user namespace, the host's root may
// appear as this user. User 65534 may own parent directories, but not the directory itself.
func TestCheckInNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files to another user")
	}
	const overflow = 65534
	above := func(user uint32) bool { return trusted(user) || user == overflow }
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inside := made(t, dir+"/vipd")
	chown(t, dir, overflow, 0)
	if err := check(inside, above, maxLinks); err != nil {
		t.Errorf("parent directory of user 65534: error = %v, want none", err)
	}
	chown(t, inside, overflow, 0)
	if err := check(inside, above, maxLinks); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("directory of user 65534: error = %v, want an error that names the owner", err)
	}
}

// planted creates a file in dir that belongs to a user, and returns dir.
func planted(t *testing.T, dir, name string, user int) string {
	t.Helper()
	if err := os.WriteFile(dir+"/"+name, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	chown(t, dir+"/"+name, user, 0)
	return dir
}

func made(t *testing.T, path string) string {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func chown(t *testing.T, path string, user, group int) {
	t.Helper()
	if err := os.Chown(path, user, group); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}
