package httpserve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// inMemory is a listener of in-memory connections, so timeouts run in virtual time. Connections
// wait until they are accepted.
type inMemory struct {
	queue chan net.Conn
	over  chan struct{}
}

func (l *inMemory) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return halfClosing{c}, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}

func (l *inMemory) Close() error   { close(l.over); return nil }
func (l *inMemory) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

type halfClosing struct{ net.Conn }

func (halfClosing) CloseWrite() error { return nil }

// dial connects, sends the text says, and returns the client's end.
func (l *inMemory) dial(t *testing.T, says string) net.Conn {
	client, server := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	go func() {
		l.queue <- server
		_, _ = io.WriteString(client, says) // fails if the server closes the connection first
	}()
	return client
}

// bounded runs a test in virtual time against a server with the default bounds.
func bounded(t *testing.T, h http.Handler, test func(t *testing.T, l *inMemory)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &inMemory{make(chan net.Conn), make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, l, LimitFollowers(h, Default()), Default()) }()
		test(t, l)
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

const quick = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func ask(t *testing.T, l *inMemory) (closes bool, err error) {
	r, err := http.ReadResponse(bufio.NewReader(l.dial(t, quick)), nil)
	if err != nil {
		return false, err
	}
	if text, err := io.ReadAll(r.Body); err != nil || string(text) != "quick" {
		return false, fmt.Errorf("answer = %q, error = %w", text, err)
	}
	return r.Close, nil
}

// TestSilentClients opens many silent connections. Each must be closed, and their number must be
// limited.
func TestSilentClients(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "quick") })
	for what, says := range map[string]string{
		"without a request":     "",
		"in a header":           "GET / HTTP/1.1\r\nHost:",
		"in a body":             "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
		"in a chunk":            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
		"in too large a body":   fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 10*maxBody),
		"after its request":     quick,
		"while it is answered":  "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
		"after a wrong request": "nonsense\r\n\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			bounded(t, h, func(t *testing.T, l *inMemory) {
				ends := make(chan error)
				began := time.Now()
				for range 2 * Default().Connections { // connections above the limit wait until others are closed
					c := l.dial(t, says)
					go func() { _, err := io.Copy(io.Discard, c); ends <- err }()
				}
				if synctest.Wait(); time.Since(began) > 0 {
					t.Fatal("virtual time advanced = true, want false")
				}
				if _, err := ask(t, l); err != nil {
					t.Errorf("request of another client: error = %v, want none", err)
				}
				for range 2 * Default().Connections {
					<-ends
				}
				if took := time.Since(began); took > time.Minute+10*time.Second {
					t.Errorf("idle connections were closed after %s, want at most 70 s", took)
				}
			})
		})
	}
}

// TestClientThatDoesNotRead requests an answer and does not read it. The server must abort the
// answer.
func TestClientThatDoesNotRead(t *testing.T) {
	var ended chan error
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for err == nil {
			_, err = w.Write(make([]byte, 1<<20))
		}
		ended <- err
	})
	bounded(t, h, func(t *testing.T, l *inMemory) {
		ended = make(chan error)
		began := time.Now()
		l.dial(t, quick)
		if err := <-ended; time.Since(began) != Default().write {
			t.Errorf("answer ended after %s with error %v, want an end after %s", time.Since(began), err, Default().write)
		}
	})
}

// TestFollowers opens connections that follow changes. These connections must have no time limit,
// and other requests must still find free connections.
func TestFollowers(t *testing.T) {
	const lines = 20
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "" {
			_, _ = io.WriteString(w, "quick")
			return
		}
		for range lines {
			_, _ = io.WriteString(w, "line\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(time.Minute):
			}
		}
	})
	bounded(t, h, func(t *testing.T, l *inMemory) {
		counts := make(chan int)
		for range Default().Connections / 2 {
			c := l.dial(t, "GET /?watch=1 HTTP/1.0\r\n\r\n")
			go func() {
				n := 0
				for s := bufio.NewScanner(c); s.Scan(); {
					if s.Text() == "line" {
						n++
					}
				}
				counts <- n
			}()
		}
		synctest.Wait()
		r, err := http.ReadResponse(bufio.NewReader(l.dial(t, "GET /?follow=1 HTTP/1.0\r\n\r\n")), nil)
		if err != nil || r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("response over the limit = %v, %v, want 503", r, err)
		}
		if closes, err := ask(t, l); err != nil || !closes {
			t.Error(errors.Join(err, errors.New("want an answer that ends its connection, because half of the connections are in use")))
		}
		for range Default().Connections / 2 {
			if n := <-counts; n != lines {
				t.Errorf("lines that a follower received = %d, want %d", n, lines)
			}
		}
	})
}
