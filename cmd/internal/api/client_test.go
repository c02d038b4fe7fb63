package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// served starts an HTTP server instead of a daemon. The server calls answer for each request.
// served returns a client of this server. patience is how long the client waits for data.
func served(t *testing.T, patience time.Duration, answer http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: answer}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	c := NewClient(socket)
	c.patience, c.work = patience, 20*patience
	t.Cleanup(func() { c.Close(); _ = server.Close(); <-done })
	return c
}

// TestSilentDaemon makes the daemon hang before or during an answer. Reads and changes must fail
// with errSilent.
func TestSilentDaemon(t *testing.T) {
	for name, first := range map[string]string{"without a word": "", "in the middle": `{"version": "v1"`} {
		hang := make(chan struct{})
		c := served(t, 50*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
			if first != "" {
				_, _ = w.Write([]byte(first))
				w.(http.Flusher).Flush()
			}
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		})
		for what, ask := range map[string]func(context.Context) error{
			"status": func(ctx context.Context) error { _, err := c.Status(ctx); return err },
			"events": func(ctx context.Context) error {
				return c.Events(ctx, EventsQuery{}, func(EventPage) error { return nil })
			},
			"reload":   func(ctx context.Context) error { _, err := c.Reload(ctx, ""); return err },
			"override": func(ctx context.Context) error { _, err := c.Override(ctx, OverrideRequest{}); return err },
		} {
			err := ask(t.Context())
			if !errors.Is(err, errSilent) || !strings.HasPrefix(err.Error(), "no answer in time: vipd at ") {
				t.Errorf("%s, %s: error = %v, want errSilent", name, what, err)
			}
		}
		close(hang)
	}
}

// TestSlowDaemon makes the daemon answer slowly. The limit must apply to each pause within an
// answer, instead of to the whole answer. It must be longer for changes, and must not apply to
// checks and followed answers.
func TestSlowDaemon(t *testing.T) {
	t.Parallel()
	const parts, pause = 4, 1500 * time.Millisecond // 6 s in total; each pause is 3.5 s shorter than the limit
	text := `{"version":      "v1"}`
	c := served(t, 5*time.Second, func(w http.ResponseWriter, _ *http.Request) {
		for i := range parts {
			time.Sleep(pause) // simulates a slow daemon
			_, _ = w.Write([]byte(text[i*len(text)/parts : (i+1)*len(text)/parts]))
			w.(http.Flusher).Flush()
		}
	})
	s, err := c.Status(t.Context())
	for again := 0; errors.Is(err, errSilent) && again < 5; again++ { // on a busy machine, a pause may exceed the limit
		s, err = c.Status(t.Context())
	}
	if err != nil || s.Version != "v1" {
		t.Errorf("status = %+v, error = %v; want version v1 and no error", s, err)
	}
	c = served(t, 10*time.Millisecond, func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(100 * time.Millisecond) // exceeds the limit of a read in this test
		_, _ = w.Write([]byte("{}"))
	})
	c.work = time.Minute
	if _, err := c.Reload(t.Context(), ""); err != nil {
		t.Errorf("Reload = %v, want nil", err)
	}
	c.work = time.Millisecond
	if _, err := c.Check(t.Context(), CheckRequest{}); err != nil {
		t.Errorf("Check = %v, want nil", err)
	}
	followed := errors.New("followed")
	if err := c.Events(t.Context(), EventsQuery{Follow: true}, func(EventPage) error { return followed }); !errors.Is(err, followed) {
		t.Errorf("Events = %v, want the callback's error", err)
	}
}

// TestInterruptedQuestion cancels a request's context. The error must be context.Canceled.
func TestInterruptedQuestion(t *testing.T) {
	asked := make(chan struct{})
	c := served(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	ctx, interrupt := context.WithCancel(t.Context())
	go func() { <-asked; interrupt() }()
	if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Status = %v, want context.Canceled", err)
	}
}

// TestAbsentSocket connects to a missing socket. The error must contain the reason that
// Client.Absent returns, or advice if the reason is unknown.
func TestAbsentSocket(t *testing.T) {
	c := NewClient(filepath.Join(t.TempDir(), "d.sock"))
	for _, known := range []string{"", "vipd runs (pid 7)"} {
		c.Absent = func() string { return known }
		want := known
		if want == "" {
			want = "the socket does not exist; start vipd"
		}
		if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "d.sock: "+want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
}

// TestEveryFailureHasAWayOut explains many errors from the kernel and from Go. Each message must
// name the socket and a remedy, and must not contain a URL.
func TestEveryFailureHasAWayOut(t *testing.T) {
	c := NewClient(filepath.Join(t.TempDir(), "d.sock"))
	failures := []error{io.EOF, io.ErrUnexpectedEOF}
	for n := syscall.Errno(1); n <= 133; n++ {
		failures = append(failures, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", n)})
	}
	for _, failure := range failures {
		text := c.explain(t.Context(), &url.Error{Op: "Get", URL: "http://vipd/v1/status", Err: failure}).Error()
		cause, way, _ := strings.Cut(text, c.socket)
		if cause == "" || strings.Contains(text, "http://") || !strings.Contains(way, "start vipd") && !strings.Contains(way, "use sudo") && !strings.Contains(way, "--socket") {
			t.Errorf("%v: message = %s, want a cause and a remedy without a URL", failure, text)
		}
	}
}
