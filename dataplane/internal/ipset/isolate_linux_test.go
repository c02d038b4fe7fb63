package ipset

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// isolated runs the calling test again in a process with a network namespace of its own, whose threads are all in
// there. It returns true in that process, and false in the first one, where the test has nothing left to do.
func isolated(t *testing.T) bool {
	t.Helper()
	const mark = "VIPD_TEST_ISOLATED"
	if os.Getenv(mark) == t.Name() {
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("bringing up lo: %v: %s", err, out)
		}
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Fatalf("in its own network namespace: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skip(string(out))
	}
	return false
}
