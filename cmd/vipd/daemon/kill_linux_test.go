package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

// webServer is an HTTP server that can be killed: it counts what it accepts, over all its lives.
type webServer struct {
	t        *testing.T
	address  string
	accepted atomic.Int64
	answered atomic.Int64 // answers that clients have got

	l      *net.TCPListener
	queued int64 // were in the kernel's queue when it died

	mu     sync.Mutex
	server *http.Server
	conns  map[net.Conn]bool
	done   chan struct{}
}

func startWebServer(t *testing.T, address string) *webServer {
	s := &webServer{t: t, address: address}
	s.start()
	t.Cleanup(func() {
		if s.server != nil {
			_ = s.server.Close()
			<-s.done
		}
	})
	return s
}

func (s *webServer) start() {
	s.t.Helper()
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.l = l.(*net.TCPListener)
	s.mu.Lock()
	s.conns, s.done = map[net.Conn]bool{}, make(chan struct{})
	s.mu.Unlock()
	s.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Millisecond)   // the work of an answer, so that requests overlap
			_, _ = io.WriteString(w, s.address) // fails where it dies meanwhile
		}),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnState: func(c net.Conn, state http.ConnState) {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch state {
			case http.StateNew:
				s.accepted.Add(1)
				s.conns[c] = true
			case http.StateClosed:
				delete(s.conns, c)
			}
		},
	}
	server, done := s.server, s.done
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.t.Error(err)
		}
	}()
}

// kill resets everything that is open, as the kernel does when the process dies. What the kernel takes for it between the
// look at the queue and the end nobody would count: so it takes nothing more before.
func (s *webServer) kill() {
	if err := s.l.SetDeadline(time.Now()); err != nil { // it accepts nothing more
		s.t.Error(err)
	}
	s.control(func(fd int) error { return unix.Listen(fd, 0) })
	s.mu.Lock()
	for c := range s.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
	}
	s.mu.Unlock()
	s.queued += s.queue()
	_ = s.server.Close()
	<-s.done
	s.server = nil
}

// queue returns how many connections the kernel has accepted that the server has not, from tcp(7).
func (s *webServer) queue() (n int64) {
	s.control(func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			n = int64(info.Unacked)
		}
		return err
	})
	return n
}

// control calls do with the socket that listens.
func (s *webServer) control(do func(fd int) error) {
	raw, err := s.l.SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil || failed != nil {
		s.t.Fatal(err, failed)
	}
}

// get sends one request over a connection of its own, and returns who has answered.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	r, err := client.Do(q)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s, %w", r.Status, err)
	}
	return string(body), nil
}

// TestNoRequestIsLost sends 200 requests one after the other and 2,000 at the same time while one of three servers is
// killed, comes back and is drained. None fails but those that the killed one had accepted, by its own count.
func TestNoRequestIsLost(t *testing.T) {
	servers := []*webServer{
		startWebServer(t, "127.40.2.1:9001"), startWebServer(t, "127.40.2.1:9002"), startWebServer(t, "127.40.2.1:9003"),
	}
	n := startNode(t, `
[services.web]
vips = ["127.40.0.3"]
ports = [{ port = 8080 }]
endpoints = [
	{ address = "127.40.2.1", port = 9001 },
	{ address = "127.40.2.1", port = 9002 },
	{ address = "127.40.2.1", port = 9003 },
]
connect_timeout = "1m"
`)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Minute}
	flaky := servers[1]
	trouble := []func(){
		flaky.kill,
		flaky.start,
		func() { n.setDraining(flaky.address, true) },
		func() { n.setDraining(flaky.address, false) },
	}
	request := func() error {
		from, err := get(t.Context(), client, "http://127.40.0.3:8080/")
		if from == flaky.address {
			flaky.answered.Add(1)
		}
		return err
	}

	var failed atomic.Int64
	var failure atomic.Value // one of them
	for i := range 200 {
		if i%50 == 25 {
			trouble[i/50]()
		}
		if err := request(); err != nil {
			t.Errorf("request %d of 200, of which none was open when the server died: %v", i, err)
		}
	}

	var requests sync.WaitGroup
	for i := range 2000 {
		if i%500 == 250 {
			trouble[i/500]()
		}
		requests.Go(func() {
			if err := request(); err != nil {
				failed.Add(1)
				failure.Store(err.Error())
			}
		})
		if i%50 == 0 {
			time.Sleep(5 * time.Millisecond) // so that they are in every stage when something happens
		}
	}
	requests.Wait()
	// A queue that is closed takes one for each processor that is at it just then; a server whose death is not made up for
	// fails some hundreds.
	const between = 5
	taken := flaky.accepted.Load() + flaky.queued - flaky.answered.Load()
	t.Logf("%d of 2000 failed; the server that died had taken %d whose answers did not arrive", failed.Load(), taken)
	if failed.Load() > taken+between {
		t.Error("more requests failed than the dead server had taken, such as: ", failure.Load())
	}
	for i := range 100 {
		if err := request(); err != nil {
			t.Errorf("later request %d: %v", i, err)
		}
	}
	wait.For(t, 5*time.Second, "all three to get requests again", func() bool {
		before := flaky.answered.Load()
		for range 3 {
			if request() != nil {
				return false
			}
		}
		return flaky.answered.Load() > before
	})
}

func (n *node) setDraining(address string, draining bool) {
	n.t.Helper()
	if _, err := n.client.Override(n.t.Context(), api.OverrideRequest{Service: "web", Address: address, Draining: &draining}); err != nil {
		n.t.Error(err)
	}
}
