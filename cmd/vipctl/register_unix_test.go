//go:build unix

package main

import (
	"os"
	"syscall"
	"testing"
)

// TestRegisterPassesSignals signals vipctl register. The command must receive signals that are not
// requests to end.
func TestRegisterPassesSignals(t *testing.T) {
	f := newStage(t)
	f.service("web", nil)
	p := f.launch("register", "web", webID, "--timeout", "0s", "--", "sh", "-c",
		`for s in HUP QUIT USR1 USR2; do trap "echo got $s" $s; done; trap "exit 3" TERM; echo ready; while kill -0 $PPID; do sleep 0.05; done`)
	p.prints("ready")
	p.says("is registered")
	for name, s := range map[string]os.Signal{"HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2} {
		if err := p.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		p.prints("got " + name)
	}
	p.interrupt()
	p.ends(3)
}
