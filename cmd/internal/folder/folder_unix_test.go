//go:build unix

package folder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheck looks at folders that are right, and at each way in which another user could change what is in one.
func TestCheck(t *testing.T) {
	const stranger = 54321
	root := os.Geteuid() == 0
	for _, c := range []struct {
		name  string
		make  func(t *testing.T, dir string) (path string)
		chown bool
		want  string // a part of the error, with DIR for the folder; "" means none
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
		{name: "a loop", want: "following the link DIR/loop", make: func(t *testing.T, dir string) string { link(t, "loop", dir+"/loop"); return dir + "/loop" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.chown && !root {
				t.Skip("needs root, to give files to another user")
			}
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			err = Check(c.make(t, dir))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(c.want, "DIR", dir))) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
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
