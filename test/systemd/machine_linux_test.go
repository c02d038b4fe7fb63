package systemd

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// machine is a systemd that is the init of its own namespaces. It uses an overlay over this
// machine's files, and the network namespace of a lab.
type machine struct {
	t   *testing.T
	ns  *lab.NS
	pid int
}

// newMachine boots systemd with the files that install creates, and with additional files. The keys
// of files are paths, and the values are contents.
func newMachine(t *testing.T, ns *lab.NS, install func(t *testing.T, to string), files map[string]string) *machine {
	t.Helper()
	lab.Need(t, "systemctl", "nsenter", "setpriv", "unshare", "make")
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Skipf("needs systemd itself: %v", err)
	}
	folder, err := os.MkdirTemp("", "vipd-machine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	for _, sub := range []string{"install", "new"} {
		if err := os.Mkdir(filepath.Join(folder, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	install(t, filepath.Join(folder, "install"))
	for name, text := range files {
		writeFile(t, filepath.Join(folder, "install", name), text)
	}
	group := newGroup(t)
	cmd := exec.Command("sh", "testdata/boot", folder, group)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	var complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &complaints, &complaints
	if err := ns.Do(cmd.Start); err != nil {
		t.Skipf("needs namespaces for an init: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // killing an init also ends its namespaces
		<-ended
	})
	m := &machine{t, ns, cmd.Process.Pid}
	wait.For(t, 30*time.Second, "systemd to have booted", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Skipf("needs an overlay over /, cgroup2 and a systemd that starts in namespaces: %v\n%s", err, complaints.String())
		default:
		}
		out, _ := m.try("systemctl is-system-running --wait")
		state := strings.TrimSpace(out)
		return state == "running" || state == "degraded" // an unrelated unit of this machine may fail
	})
	return m
}

// fromTree follows README.md's section Install, with programs that are already built.
func fromTree(t *testing.T, to string) {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	for name, target := range map[string]string{
		"Makefile": filepath.Join(top, "Makefile"), "systemd": filepath.Join(top, "systemd"), "packaging": filepath.Join(top, "packaging"),
	} {
		if err := os.Symlink(target, filepath.Join(tree, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(tree, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	bin := program.Bin(t)
	for _, name := range []string{"vipd", "vipctl"} {
		if err := os.Symlink(filepath.Join(bin, name), filepath.Join(tree, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("make", "-C", tree, "install", "DESTDIR="+to, "PREFIX=/usr/local").CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
}

// writeFile writes a file. It makes the file executable if the text starts like a program, and
// creates a link if the text is "-> TARGET".
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if target, ok := strings.CutPrefix(text, "-> "); ok {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return
	}
	mode := fs.FileMode(0o644)
	if strings.HasPrefix(text, "#!") {
		mode = 0o755
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// newGroup creates a control group for a systemd, and removes it when the test ends. In a lab, the
// mount is not visible outside.
func newGroup(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	if err := unix.Mount("cgroup2", top, "cgroup2", 0, ""); err != nil {
		t.Skipf("needs cgroup2: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(top, unix.MNT_DETACH); err != nil {
			t.Errorf("unmounting cgroup2: %v", err)
		}
	})
	group := filepath.Join(top, own(t), "vipd-machine-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("needs control groups: %v", err)
	}
	t.Cleanup(func() {
		wait.For(t, 20*time.Second, "the control groups of the machine to be removed", func() bool { return removed(group) })
	})
	return group
}

// own returns this process's control group, relative to cgroup2's mount point.
func own(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(read(t, "/proc/self/cgroup")) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	t.Skip("needs cgroup2: this process is in no cgroup")
	return ""
}

// removed removes a control group and its children, deepest first, and reports whether the group no
// longer exists. Groups whose processes have not exited yet are not removed.
func removed(group string) bool {
	entries, _ := os.ReadDir(group)
	for _, e := range entries {
		if e.IsDir() {
			removed(filepath.Join(group, e.Name()))
		}
	}
	_ = os.Remove(group)
	_, err := os.Stat(group)
	return err != nil
}

// command prepares a script that runs in the machine as root.
func (m *machine) command(script string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(m.t.Context(), wait.Bound(0))
	m.t.Cleanup(cancel)
	return exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(m.pid), "--mount", "--root", "--wd", "--pid", "--uts", "--ipc", "--cgroup", "--net", "--",
		"env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_PAGER=", "LANG=C.UTF-8",
		"bash", "-euo", "pipefail", "-c", "sudo() { \"$@\"; }\n"+script)
}

func (m *machine) try(script string) (string, error) {
	out, err := m.command(script).CombinedOutput()
	return string(out), err
}

// run is like try, but fails the test if the script fails.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s\nthe journal:\n%s", script, err, out, m.journal(""))
	}
	return out
}

// journal returns the unit's log, oldest lines first.
func (m *machine) journal(flags string) string {
	out, _ := m.try("journalctl --no-pager -o short-precise -u vipd " + flags)
	return out
}

// property returns a property of vipd's unit from systemctl show.
func (m *machine) property(name string) string {
	m.t.Helper()
	return strings.TrimSpace(m.run("systemctl show vipd --value -p " + name))
}

// path returns the path outside the machine of a file in the machine.
func (m *machine) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", m.pid), name)
}
