package lab

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// insideVar is the environment variable that describes how a test process was started. It is unset
// if go test started it, "yes" inside its namespaces, and otherwise the reason why it has none.
const insideVar = "VIPD_LAB"

const inside = "yes"

// Main runs the tests of a package inside the host namespace (see the package's documentation), and
// exits with their exit code. TestMain calls it last, because everything before it runs twice.
func Main(m Tests) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = 1
	}
	os.Exit(code) // TestMain has no other way to pass on the exit code of another process
}

func run(m Tests) (int, error) {
	state := os.Getenv(insideVar)
	// A fuzz worker talks to its coordinator through inherited descriptors, and has also inherited
	// the coordinator's namespaces.
	if state != "" || slices.ContainsFunc(os.Args[1:], isWorkerFlag) {
		return runHere(m, state)
	}
	flag.Parse()
	if os.Geteuid() != 0 || testing.Short() {
		return m.Run(), nil
	}
	return runAgain(m)
}

// Apart returns env without insideVar. A test process that is started with this environment gets
// its own namespaces, even if a test starts it.
func Apart(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, insideVar+"=") })
}

func isWorkerFlag(arg string) bool {
	return strings.HasPrefix(strings.TrimPrefix(arg, "-"), "-test.fuzzworker")
}

// runHere runs the tests in this process. state is the value of insideVar.
func runHere(m Tests, state string) (int, error) {
	if state == inside && os.Getpid() == 1 {
		if err := furnish(); err != nil {
			if err := os.Setenv(insideVar, err.Error()); err != nil {
				return 0, err
			}
		}
	}
	return m.Run(), nil
}

// furnish makes the fresh namespaces usable. lo is set up first, because tests need it even if a
// later step fails.
func furnish() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding lo in a fresh network namespace: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting up lo in a fresh network namespace: %w", err)
	}
	mounts := []struct {
		kind, at string
		flags    uintptr
		options  string
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE, ""}, // first: mounts below must not be visible outside
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	}
	for _, m := range mounts {
		if err := unix.Mount(m.kind, m.at, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mounting %s in a fresh mount namespace: %w", m.at, err)
		}
	}
	return configureNamespace()
}

// runAgain starts this test binary in fresh namespaces with the same arguments, and returns its
// exit code.
func runAgain(m Tests) (int, error) {
	runtime.LockOSThread() // Pdeathsig is sent when the forking thread ends, so it must last as long as this call
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := &exec.Cmd{
		Path: self, Args: os.Args, // go test and the fuzzing engine find files by the name they started
		Env:   append(os.Environ(), insideVar+"="+inside),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &unix.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
			Pdeathsig:  unix.SIGKILL,
		},
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	if err := cmd.Start(); err != nil {
		signal.Stop(signals)
		runtime.UnlockOSThread()
		if err := os.Setenv(insideVar, fmt.Sprintf("starting a process in fresh namespaces: %v", err)); err != nil {
			return 0, err
		}
		return m.Run(), nil
	}
	go passOn(signals, cmd.Process)
	err = cmd.Wait()
	signal.Stop(signals)
	close(signals)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if code := exit.ExitCode(); code >= 0 {
			return code, nil
		}
		return 0, fmt.Errorf("tests ended: %w", err)
	}
	return 0, err
}

// passOn forwards signals to the tests. When a test takes too long, go test sends SIGQUIT to get
// stack traces.
func passOn(signals <-chan os.Signal, to *os.Process) {
	for s := range signals {
		_ = to.Signal(s) // the process may have just exited
	}
}

// Require skips the test unless it runs in its own host namespace.
func Require(t testing.TB) {
	t.Helper()
	switch state := os.Getenv(insideVar); {
	case state == inside:
	case testing.Short():
		t.Skip("needs network namespaces, which is too much for -short")
	case state != "":
		t.Skip("needs network namespaces: ", state)
	case os.Geteuid() != 0:
		t.Skip("needs root to make network namespaces")
	default:
		t.Fatal("this package's TestMain does not call lab.Main")
	}
}
