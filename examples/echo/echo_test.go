package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// running is a server that runs in this process.
type running struct {
	http, tcp, udp string
	countFile      string
	stop           context.CancelFunc
	done           chan error
	out            *buffer
}

// buffer collects the server's output.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start starts a server on ports that the kernel chooses, and waits until it serves.
func start(t *testing.T) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &running{stop: stop, done: make(chan error, 1), out: &buffer{}, countFile: filepath.Join(t.TempDir(), "count")}
	go func() {
		r.done <- run(ctx, []string{"--name", "a", "--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "--udp", "127.0.0.1:0",
			"--count-file", r.countFile, "--grace", "1m"}, r.out, io.Discard)
	}()
	serving := regexp.MustCompile(`serving http=(\S+) tcp=(\S+) udp=(\S+)\n`)
	for deadline := time.Now().Add(time.Minute); ; {
		if m := serving.FindStringSubmatch(r.out.String()); m != nil {
			r.http, r.tcp, r.udp = m[1], m[2], m[3]
			return r
		}
		select {
		case err := <-r.done:
			t.Fatalf("server: error = %v, want none", err)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("server: output = %q, want its addresses", r.out)
		}
	}
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("stopped server: error = %v, want none", err)
	}
}

func (r *running) fetch(t *testing.T, path string) string {
	t.Helper()
	response, err := http.Get("http://" + r.http + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestAnswers sends requests over HTTP, TCP and UDP. The answers must be correct, and so must the
// counts at /count, in the file, and in the final output.
func TestAnswers(t *testing.T) {
	r := start(t)
	for _, path := range []string{"/", "/slow?ms=1"} {
		if got := r.fetch(t, path); !strings.HasPrefix(got, "a 127.0.0.1:") {
			t.Errorf("GET %s = %q, want the name and the client's address", path, got)
		}
	}
	if got := r.fetch(t, "/healthz"); got != "ok\n" {
		t.Errorf("GET /healthz = %q, want ok", got)
	}

	conn, err := net.Dial("tcp", r.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	lines := bufio.NewReader(conn)
	first, _ := lines.ReadString('\n')
	if want := fmt.Sprintf("a %s\n", conn.LocalAddr()); first != want {
		t.Errorf("first TCP line = %q, want %q", first, want)
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if got, _ := lines.ReadString('\n'); got != "hello\n" {
		t.Errorf("TCP echo = %q, want hello", got)
	}
	_ = conn.Close()

	packets, err := net.Dial("udp", r.udp)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packets.Close() }()
	if _, err := io.WriteString(packets, "hello"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	_ = packets.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := packets.Read(answer); err != nil || string(answer[:n]) != "a hello" {
		t.Errorf("UDP echo = %q, %v, want \"a hello\"", answer[:n], err)
	}

	const want = "accepted http=2 tcp=1 udp=1\n"
	if got := r.fetch(t, "/count"); got != want {
		t.Errorf("GET /count = %q, want %q", got, want)
	}
	if got, err := os.ReadFile(r.countFile); err != nil || string(got) != want {
		t.Errorf("count file = %q, %v, want %q", got, err, want)
	}
	r.end(t)
	if got := r.out.String(); !strings.HasSuffix(got, "a: "+want) {
		t.Errorf("final output = %q, want %q last", got, want)
	}
}

// TestGracefulEnd stops the server during a request. The request must be answered, and no new
// request may be accepted.
func TestGracefulEnd(t *testing.T) {
	r := start(t)
	answer := make(chan string, 1)
	go func() {
		response, err := http.Get("http://" + r.http + "/slow?ms=300")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(response.Body)
		answer <- string(body)
	}()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(r.fetch(t, "/count"), "http=1"); {
		if time.Now().After(deadline) {
			t.Fatal("count of requests = 0 after a minute, want the slow request")
		}
	}
	r.end(t)
	if got := <-answer; !strings.HasPrefix(got, "a ") {
		t.Errorf("answer to the open request = %q, want the server's name", got)
	}
	if conn, err := net.Dial("tcp", r.http); err == nil {
		_ = conn.Close()
		t.Error("connection to the stopped server succeeded, want an error")
	}
}

// TestWrongUse runs the server with wrong arguments. Each error must explain the mistake.
func TestWrongUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for want, args := range map[string][]string{
		"nothing to serve":               {},
		`"surplus" is not a flag`:        {"--http", "127.0.0.1:0", "surplus"},
		"another program uses that port": {"--http", "127.0.0.1:0", "--tcp", taken.Addr().String()},
		"flag provided but not defined":  {"--htp", "127.0.0.1:0"},
		"missing port in address":        {"--udp", "127.0.0.1"},
	} {
		err := run(t.Context(), args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("echo %v: error = %v, want an error with %q", args, err, want)
		}
	}
}
