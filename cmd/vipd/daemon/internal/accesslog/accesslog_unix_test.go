//go:build unix

package accesslog

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/test/wait"
)

// TestDiskTakesNothing logs to a pipe without a reader. Connections must continue, and each line
// must be either written or counted as lost. A problem must be reported until a reader opens the
// pipe.
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
		t.Errorf("lines lost = %d of %d, want at least one, and only lines that did not fit in the queue", lost, queued+more)
	}
	wait.For(t, wait.Patience, "the problem", func() bool {
		p := l.Problems()
		return len(p) == 1 && strings.Contains(p[0].Text, "has accepted no lines for 5s")
	})
	go func() {
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
		}
		text, _ := io.ReadAll(f)
		read <- strings.Count(string(text), "service=web ")
	}()
	if n := <-read; n+int(lost) != queued+more {
		t.Errorf("lines written = %d, lost = %d, want %d in total", n, lost, queued+more)
	}
	<-ended
	wait.For(t, wait.Patience, "the end of the problem", func() bool { return len(l.Problems()) == 0 })
}

// TestHangsThenFails makes a write hang and then fail, like a write to a pipe whose reader exits.
// The reported problem must change to the write error, and vipd's log must contain the error.
func TestHangsThenFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	none := func() (snap.Map[balancer.Name, *balancer.Service], <-chan struct{}) {
		return snap.Map[balancer.Name, *balancer.Service]{}, nil
	}
	said := make(chan string, 10)
	l := New(Options{Default: path, Services: none, Log: slog.New(slog.NewTextHandler(lines(said), nil)), Follow: func(ctx context.Context, tell func(bool, *dataplane.Connection), _ func(uint64)) error {
		for range queued { // exceeds the pipe's buffer
			tell(false, &dataplane.Connection{Service: "web"})
		}
		<-ctx.Done()
		return nil
	}})
	problem := func(text string) func() bool {
		return func() bool { p := l.Problems(); return len(p) == 1 && strings.Contains(p[0].Text, text) }
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	wait.For(t, wait.Patience, "the problem", problem("has accepted no lines for 5s"))
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	wait.For(t, wait.Patience, "the other problem", problem("broken pipe"))
	cancel()
	<-ended
	if len(said) == 0 || !strings.Contains(<-said, "the access log can't be written") {
		t.Error("access log failures in vipd's log = 0, want 1")
	}
}

// lines is a writer that sends each write to a channel.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestProblemEndsWithTheSetting gives a service an access log that can't be written, and then makes
// the service log to a writable file. The problem must disappear.
func TestProblemEndsWithTheSetting(t *testing.T) {
	bad, good := filepath.Join(t.TempDir(), "none", "log"), filepath.Join(t.TempDir(), "log")
	var to atomic.Pointer[string]
	to.Store(&bad)
	changed := make(chan struct{})
	services := func() (all snap.Map[balancer.Name, *balancer.Service], _ <-chan struct{}) {
		return all.Set("web", &balancer.Service{Name: "web", AccessLog: to.Load()}), changed
	}
	ctx, cancel := context.WithCancel(t.Context())
	follow := func(ctx context.Context, tell func(bool, *dataplane.Connection), _ func(uint64)) error {
		tell(false, &dataplane.Connection{Service: "web"})
		<-ctx.Done()
		return nil
	}
	l := New(Options{Services: services, Log: slog.New(slog.DiscardHandler), Follow: follow})
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	wait.For(t, wait.Patience, "the problem", func() bool { return len(l.Problems()) == 1 })
	to.Store(&good)
	if p := l.Problems(); len(p) > 0 {
		t.Errorf("without a service that names the unwritable file: problems = %v, want none", p)
	}
	cancel()
	<-ended
}

// TestTornLineEndsAlone fills the disk in the middle of a line. The next entry must start on a new
// line.
func TestTornLineEndsAlone(t *testing.T) {
	const room, before, after = 1000, 50, 5
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	exceeded := make(chan os.Signal, 1)
	signal.Notify(exceeded, syscall.SIGXFSZ) // otherwise the signal would end the process
	defer signal.Stop(exceeded)
	bound := func(n syscall.Rlimit) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &n); err != nil {
			t.Error(err)
		}
	}
	defer bound(old)
	full := old
	full.Cur = room // as on a full disk, only the first part of a write succeeds
	bound(full)
	path := filepath.Join(t.TempDir(), "log")
	ctx, cancel := context.WithCancel(t.Context())
	var l *Log
	none := func() (snap.Map[balancer.Name, *balancer.Service], <-chan struct{}) {
		return snap.Map[balancer.Name, *balancer.Service]{}, nil
	}
	l = New(Options{Default: path, Services: none, Log: slog.New(slog.DiscardHandler), Follow: func(_ context.Context, tell func(bool, *dataplane.Connection), _ func(uint64)) error {
		defer cancel()
		for range before {
			tell(false, &dataplane.Connection{Service: "before"})
		}
		wait.For(t, wait.Patience, "the disk to be full", func() bool { return l.Lost() > 0 })
		bound(old)
		for range after {
			tell(false, &dataplane.Connection{Service: "after"})
		}
		return nil
	}})
	l.Run(ctx)
	var text []byte
	defer func() {
		if t.Failed() {
			t.Logf("the log has\n%s", text)
		}
	}()
	wait.For(t, wait.Patience, "each line after it to be whole", func() bool { // Run waits only 2 s for its writer, so lines may be written later
		var err error
		if text, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		whole := 0
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "time=") && strings.Contains(line, " service=after ") && strings.Count(line, "time=") == 1 {
				whole++
			}
		}
		return whole == after
	})
}
