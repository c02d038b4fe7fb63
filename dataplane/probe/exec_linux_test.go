package probe_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/test/wait"
)

// shell returns the definition of a check that runs a shell script. Only tests run checks in a
// shell.
func shell(script string, change func(*balancer.Health)) *balancer.Health {
	return define(balancer.ExecHealth, func(h *balancer.Health) {
		h.Command = []string{"/bin/sh", "-c", script}
		h.Timeout = wait.Patience
		h.Interval = 2 * h.Timeout
		if change != nil {
			change(h)
		}
	})
}

func TestExec(t *testing.T) {
	quiet(t)
	at := netip.MustParseAddrPort("192.0.2.1:80")
	short := func(h *balancer.Health) { h.Timeout = 200 * time.Millisecond }
	says := func(h *balancer.Health) { h.Timeout = time.Second } // gives the program enough time to print its text
	for _, c := range []struct {
		name   string
		health *balancer.Health
		want   health.Outcome
		text   string
	}{
		{"passes in silence", shell("exit 0", nil), health.Passed, "exited with 0"},
		{"says something", shell("echo looking; echo '3 of 3 disks are fine'; echo", nil), health.Passed, "3 of 3 disks are fine"},
		{"says it after much", shell("head -c 1000000 /dev/zero | tr '\\0' '\\n'; seq 10000; echo fine", nil), health.Passed, "fine"},
		{"fails", shell("exit 3", nil), health.Failed, "exited with 3"},
		{"fails with a word", shell("echo 'disk full' >&2; exit 3", nil), health.Failed, "exited with 3: disk full"},
		{"fails, and talks of other things too", shell("echo 'Traceback:' >&2; echo 'No disk' >&2; echo >&2; echo bye; exit 1", nil), health.Failed, "exited with 1: No disk"},
		{"fails, and prints why", shell("echo looking; echo 'disk full'; exit 3", nil), health.Failed, "exited with 3: disk full"},
		{"control characters", shell("printf 'a\\033[31mred\\007\\302\\233b\\r\\n' >&2; exit 1", nil), health.Failed, "exited with 1: a [31mred  b"},
		{"killed", shell("kill -SEGV $$", nil), health.Failed, "ended by signal: segmentation fault"},
		{"hangs", shell("echo thinking; sleep 100", says), health.Failed, "did not exit within 1s and was killed: thinking"},
		{"hangs and holds on", shell("trap '' TERM INT HUP; while :; do sleep 1; done", short), health.Failed, "did not exit within 200ms and was killed"},
		{"endless output", shell("while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done", says), health.Failed, "did not exit within 1s and was killed: yyy"},
		{"much output", shell("head -c 1000000 /dev/zero | tr '\\0' 'y'", nil), health.Passed, strings.Repeat("y", 200)},
		{"the target's address", shell(`echo "$VIPD_ADDRESS $VIPD_PORT"`, nil), health.Passed, "192.0.2.1 80"},
		{"no shell", define(balancer.ExecHealth, func(h *balancer.Health) {
			h.Command, h.Timeout = []string{"/bin/echo", "$HOME;", "`id`"}, wait.Patience
		}), health.Passed, "$HOME; `id`"},
		{"no such program", define(balancer.ExecHealth, func(h *balancer.Health) { h.Command = []string{"/nowhere/check"} }), health.NotRun, "not run: starting /nowhere/check: no such file or directory"},
		{"no such user", shell("exit 0", func(h *balancer.Health) { h.User = "nobody-of-that-name" }), health.NotRun, "not run: looking up the user nobody-of-that-name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, c.health, at, c.want, c.text)
		})
	}
}

// TestExecUser runs checks with and without a user in their definition. Each program must run as
// this user or, without one, as nobody.
func TestExecUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to run programs as another user")
	}
	for user, want := range map[string]string{"": "nobody", "daemon": "daemon", "root": "root"} {
		got := newProbe(shell("id -un", func(h *balancer.Health) { h.User = user }), balancer.TCP).Check(t.Context(), netip.MustParseAddrPort("192.0.2.1:80"))
		if got.Outcome != health.Passed || got.Text != want {
			t.Errorf("user %q: %s: %q, want %q", user, got.Outcome, got.Text, want)
		}
	}
}

// TestExecLeavesNothing runs two programs that start a child. One program then exits, and the other
// hangs until the timeout. Both checks must finish in time, and both children must be killed.
func TestExecLeavesNothing(t *testing.T) {
	quiet(t)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // as for the first process in a container
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for parent := dir; parent != "/tmp" && parent != "/"; parent = filepath.Dir(parent) {
		_ = os.Chmod(parent, 0o777) // the user "nobody" writes to this directory
	}
	for name, h := range map[string]*balancer.Health{
		"killed": shell(fmt.Sprintf("sleep 1000 & echo $! > %s/killed; sleep 1000", dir), func(h *balancer.Health) { h.Timeout = wait.Scaled(time.Second) }),
		"ended":  shell(fmt.Sprintf("sleep 1000 & echo $! > %s/ended; exit 0", dir), nil),
	} {
		var got health.Result
		var pid int
		for range 4 { // repeated, because on a busy machine the program may be killed before it starts its child
			start := time.Now()
			got = newProbe(h, balancer.TCP).Check(t.Context(), netip.MustParseAddrPort("192.0.2.1:80"))
			if took := time.Since(start); took > h.Timeout+wait.Patience {
				t.Errorf("%s: check took %s, want at most the timeout of %s and some slack", name, took, h.Timeout)
			}
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err == nil {
				pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
			}
			if err == nil {
				break
			}
			h.Timeout *= 4
		}
		if pid == 0 {
			t.Fatalf("%s: the program has not started its child; outcome = %s: %s", name, got.Outcome, got.Text)
		}
		wait.For(t, 5*time.Second, name+": the end of the child", func() bool { return syscall.Kill(pid, 0) != nil })
	}
}
