package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"vipd/cmd/internal/cli"
)

// TestInterruptEndsReading interrupts "convert" and "check" while they read from standard input.
// Both must report the interrupt and exit.
func TestInterruptEndsReading(t *testing.T) {
	for _, args := range [][]string{{"convert", "--from", "nginx", "-"}, {"check", "-"}} {
		never, end := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		var stderr strings.Builder
		w := cli.World{Stdin: never, Stdout: io.Discard, Stderr: &stderr, Getenv: func(string) string { return "" }}
		ended := make(chan int)
		go func() { ended <- run(ctx, w, args) }()
		interrupt()
		if code := <-ended; code == cli.ExitDone || !strings.Contains(stderr.String(), "interrupted") {
			t.Errorf("%s: exit code = %d, stderr = %q; want an interrupt", args[0], code, stderr.String())
		}
		_ = end.Close()
	}
}
