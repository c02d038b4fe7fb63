//go:build unix

package accesslog

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// TestDiskTakesNothing: connections go on where the log's file takes nothing, such as a pipe without a reader, and what is not
// written is counted: all that were told are written or lost.
func TestDiskTakesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	const more = 500
	ctx, cancel := context.WithCancel(t.Context())
	none := func() (snap.Map[balancer.Name, *balancer.Service], <-chan struct{}) {
		return snap.Map[balancer.Name, *balancer.Service]{}, nil
	}
	l := New(Options{Default: path, Services: none, Log: slog.New(slog.DiscardHandler), Follow: func(_ context.Context, tell func(bool, *dataplane.Connection), _ func(uint64)) error {
		for range queued + more {
			tell(false, &dataplane.Connection{Service: "web"})
		}
		cancel()
		return nil
	}})
	read := make(chan int)
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	<-ctx.Done()
	lost := l.Lost()
	if lost == 0 || lost > more {
		t.Errorf("%d of %d lines are lost", lost, queued+more)
	}
	go func() {
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
		}
		text, _ := io.ReadAll(f)
		read <- strings.Count(string(text), "service=web ")
	}()
	if n := <-read; n+int(lost) != queued+more {
		t.Errorf("%d lines are written and %d lost of %d", n, lost, queued+more)
	}
	<-ended
}
