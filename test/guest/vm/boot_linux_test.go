package vm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/test/wait"
)

// needGuest skips the test if no guest can run.
func needGuest(t *testing.T) {
	t.Helper()
	if err := Missing(); err != nil {
		t.Skip(err)
	}
	if os.Getenv(GuestVar) != "" {
		t.Skip("needs its own machine: this is a guest")
	}
	if !wait.Soaking() {
		t.Skip("runs only in make soak, because the tests of ipvs mode already boot a guest")
	}
}

// TestOneBoot runs a command in a guest. Its output, status and files must arrive as documented.
// There is only one guest, because a boot lasts ten seconds.
func TestOneBoot(t *testing.T) {
	needGuest(t)
	here, lost, kept := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "a folder, with a comma")
	if err := os.Mkdir(kept, 0o755); err != nil {
		t.Fatal(err)
	}
	const script = `
echo "folder $PWD"
echo "argument $1"
echo "variable $ODD"
echo "guest $VIPD_GUEST, slow ${VIPD_SLOWNESS:+yes}, user $(id -u)"
echo lost >"$2/file" && echo "overlay $(cat "$2/file")"
grep ' / overlay ' /proc/mounts | grep -o 'lowerdir=[^,]*'
echo kept >"$3/file"
modprobe ip_vs conn_tab_bits=20 && head -1 /proc/net/ip_vs
for s in rr wrr lc wlc lblc lblcr dh sh sed nq fo ovf mh; do modprobe ip_vs_$s || echo "no $s"; done
grep -Eq '^(tsc|kvm-clock)$' /sys/devices/system/clocksource/clocksource0/current_clocksource && echo "fast clock"
grep -q kvm-clock /sys/devices/system/clocksource/clocksource0/current_clocksource || # its time is 10^9 instructions a second:
	grep -Eq '^cpu MHz\s*: (999|1000)\.' /proc/cpuinfo && echo "a clock of its own"
modprobe sctp && modprobe ipip && ip link add dummy1 type dummy && echo "other modules"
unshare -n true && echo namespaces
test -e /run/guest/start && echo "own run"
echo complaint >&2
exit 7`
	var out, complaints strings.Builder
	const odd = "it's $HOME \\ \"quoted\""
	status, err := Run(t.Context(), Options{
		Dir: here, Writable: kept, Env: []string{"ODD=" + odd}, Stdout: &out, Stderr: &complaints, Log: t.Logf,
	}, "sh", "-c", script, "sh", odd, lost, kept)
	if err != nil {
		t.Fatal(err)
	}
	if status != 7 {
		t.Errorf("exit status = %d, want 7", status)
	}
	for _, want := range []string{
		"folder " + here, "argument " + odd, "variable " + odd, "guest 1, slow yes, user 0", "overlay lost", "lowerdir=/lower",
		"(size=1048576)", "other modules", "namespaces", "own run", "fast clock", "a clock of its own",
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("output of the guest lacks %q", want)
		}
	}
	if got := complaints.String(); got != "complaint\n" {
		t.Errorf("stderr = %q, want only the command's message", got)
	}
	if strings.Contains(out.String(), "no ") {
		t.Error("the guest's kernel lacks a scheduler of IPVS")
	}
	if t.Failed() {
		t.Logf("output of the guest:\n%s", out.String())
	}
	if _, err := os.Stat(filepath.Join(lost, "file")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file written outside the writable folder: error = %v, want an error that it does not exist", err)
	}
	if text, err := os.ReadFile(filepath.Join(kept, "file")); err != nil || string(text) != "kept\n" {
		t.Errorf("file in the writable folder = %q, error = %v, want the written text", text, err)
	}
}

// TestTheLimitEndsAGuest sets a limit so short that it may expire during the boot. The guest must
// stop, and leave no files.
func TestTheLimitEndsAGuest(t *testing.T) {
	needGuest(t)
	t.Setenv("TMPDIR", t.TempDir())
	var out strings.Builder
	began := time.Now()
	_, err := Run(t.Context(), Options{Limit: 2 * time.Second, Stdout: &out}, "sleep", "1000")
	if !errors.Is(err, ErrLimit) {
		t.Errorf("command that never ends: error = %v, want %v", err, ErrLimit)
	}
	t.Logf("time until the end = %s", time.Since(began))
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("after the command: files = %v, error = %v, want none", left, err)
	}
}

// TestAFailingBootShowsTheConsole boots with an invalid initial file system. The error must contain
// the console's output.
func TestAFailingBootShowsTheConsole(t *testing.T) {
	needGuest(t)
	dir, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	c := cache{dir, debian{}, t.Logf}
	folder, release, err := c.kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	k, err := openKernel(folder)
	if err != nil {
		t.Fatal(err)
	}
	m := machine{kernel: k, job: t.TempDir(), options: Options{}.withDefaults()}
	if err := os.WriteFile(m.initrd(), []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, err := m.run(t.Context())
	if err == nil {
		t.Fatalf("guest without a file system: status = %d, want an error", status)
	}
	for _, want := range []string{"Kernel panic", "console"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error = %[2]v, want %[1]q in it", want, err)
		}
	}
}
