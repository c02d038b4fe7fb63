//go:build unix

package main

import (
	"os"
	"syscall"
	"testing"

	"vipd/cmd/internal/cli"
)

// TestRegisterPassesSignals sends signals to vipctl register. The command must receive every signal
// that is not a request to stop.
func TestRegisterPassesSignals(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	p := f.launch("register", "web", webID, "--timeout", "0s", "--", "sh", "-c",
		`for s in HUP QUIT USR1 USR2; do trap "echo got $s" $s; done; trap "exit 3" TERM; echo ready; while kill -0 $PPID; do sleep 0.05; done`)
	p.waitForStdout("ready")
	p.waitForStderr("is registered")
	for name, s := range map[string]os.Signal{"HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2} {
		if err := p.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		p.waitForStdout("got " + name)
	}
	p.interrupt()
	p.waitForExit(3)
}

// TestTerminated ends a wait with SIGTERM. The exit code must differ from the exit code after
// Ctrl-C.
func TestTerminated(t *testing.T) {
	f := newStage(t)
	f.start("gw1", atRevision(40))
	f.waitForStatuses(1)
	p := f.launch("wait", "--revision", "41")
	p.waitForStderr("waiting: gw1")
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitForExit(cli.ExitTerminated)
	p.waitForStderr("vipctl: interrupted; revision 41 is not applied on all nodes: gw1 is at revision 40")
}
