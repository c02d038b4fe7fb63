package examples

import (
	"context"
	"strings"
	"testing"
	"time"

	"vipd/examples/process"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestTour runs make demo's tour. The tour must report that all its claims held.
func TestTour(t *testing.T) {
	tree := program.New(t)
	out, err := tree.Shell(t, "bin/demo tour", wait.Bound(10*time.Minute))
	if err != nil || !strings.Contains(out, "claims held") {
		t.Fatalf("bin/demo tour = %v, want \"claims held\" in the output:\n%s", err, out)
	}
	t.Log(out)
}

// TestRunTwice starts and stops make run's program twice. Starting it while it is already running
// must fail.
func TestRunTwice(t *testing.T) {
	tree := program.New(t)
	for range 2 {
		p := tree.Start(t, "demo", "run")
		ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
		defer cancel()
		if err := p.AwaitOutput(ctx, "Ctrl-C here ends everything"); err != nil {
			t.Fatal(err)
		}
		second := tree.Start(t, "demo", "run")
		<-second.Done()
		if want := "tcp 127.10.0.1:8080"; second.Err() == nil || !strings.Contains(second.Output(), want) {
			t.Errorf("second run = %v\n%s\nwant a failure that names %q", second.Err(), second.Output(), want)
		}
		end(t, p)
	}
}

// end sends SIGINT, like Ctrl-C, and waits until the program has exited.
func end(t *testing.T, p *process.Process) {
	t.Helper()
	if err := p.Stop(wait.Patience); err != nil {
		t.Fatal(err)
	}
}
