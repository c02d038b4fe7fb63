package userspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

type rig struct {
	*Dataplane
	t testing.TB
}

// start returns a dataplane that is closed when the test ends. The test fails if any goroutine or
// descriptor is left.
func start(t testing.TB, o Options) *rig {
	t.Helper()
	if o.Intercept == "" {
		o.Intercept = Bind
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(&testLog{t: t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	before, goroutines := descriptors(), goleak.IgnoreCurrent()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if err := d.Close(ctx, false); err != nil {
			t.Errorf("Close: %v", err)
		}
		if n := d.budget.used.Load(); n != 0 {
			t.Errorf("counted descriptors after Close = %d, want 0", n)
		}
		if n := d.flows.used; n != 0 {
			t.Errorf("counted flows after Close = %d, want 0", n)
		}
		for _, c := range d.Counters() {
			for _, b := range c.Backends {
				if b.Active != 0 {
					t.Errorf("connections after Close = %d at %s, want 0", b.Active, b.Backend)
				}
			}
		}
		eventually(t, "the end of goroutines", func() error { return goleak.Find(goroutines) }) // includes the goroutines of the test's servers
		eventually(t, "the descriptors of before", func() error {
			if after := descriptors(); len(after) > len(before) {
				return fmt.Errorf("descriptors = %d, want %d: %v", len(after), len(before), after)
			}
			return nil
		})
	})
	return &rig{d, t}
}

func descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var sockets []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && len(to) > 6 && to[:6] == "socket" {
			sockets = append(sockets, to)
		}
	}
	return sockets
}

// testLog is a writer that writes to the test's log. After the test has ended, it discards
// everything.
type testLog struct {
	t testing.TB
}

func (l *testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

// apply adds or changes the specified frontends. All other frontends stay unchanged.
func (r *rig) apply(frontends ...*balancer.Frontend) {
	r.t.Helper()
	if err := r.tryApply(frontends...); err != nil {
		r.t.Fatalf("Apply: %v", err)
	}
}

func (r *rig) tryApply(frontends ...*balancer.Frontend) error {
	var batch []dataplane.Change
	for _, f := range frontends {
		batch = append(batch, dataplane.Change{Key: f.Key, New: f})
	}
	return r.Apply(context.Background(), batch)
}

func (r *rig) remove(keys ...balancer.Key) {
	r.t.Helper()
	var batch []dataplane.Change
	for _, k := range keys {
		batch = append(batch, dataplane.Change{Key: k})
	}
	if err := r.Apply(context.Background(), batch); err != nil {
		r.t.Fatalf("Apply of the removal: %v", err)
	}
}

// frontendAt returns a frontend whose backends are all active. Its timeouts are long enough for a
// machine that may be paused.
func frontendAt(key string, backends ...netip.AddrPort) *balancer.Frontend {
	k, err := balancer.ParseKey(key)
	if err != nil {
		panic(err)
	}
	f := &balancer.Frontend{
		Key: k, Service: "web", Port: "p", Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, NoEndpoints: balancer.RejectClients, DrainTimeout: 30 * time.Second, ConnectTimeout: wait.Patience, ProxyProtocol: balancer.NoProxyProtocol},
	}
	if k.Proto == balancer.UDP {
		f.IdleTimeout, f.ConnectTimeout = time.Minute, time.Second // ConnectTimeout also limits how long a single client tries a backend that has rested
	}
	slices.SortFunc(backends, netip.AddrPort.Compare)
	for _, b := range backends {
		f.Backends = append(f.Backends, balancer.Backend{Addr: b, State: balancer.Active, Weight: 1})
	}
	return f
}

func with(f *balancer.Frontend, edit func(*balancer.Frontend)) *balancer.Frontend {
	g := *f
	g.Backends = slices.Clone(f.Backends)
	edit(&g)
	return &g
}

// server is a TCP backend that passes each of its connections to a function.
type server struct {
	addr     netip.AddrPort
	ln       net.Listener
	accepted atomic.Int64
	mu       sync.Mutex
	conns    map[net.Conn]bool
	wg       sync.WaitGroup
}

func serveAt(t testing.TB, addr string, handle func(net.Conn)) *server {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{ln: ln, addr: ln.Addr().(*net.TCPAddr).AddrPort(), conns: map[net.Conn]bool{}}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			s.mu.Lock()
			s.conns[c] = true
			s.mu.Unlock()
			s.wg.Add(1)
			go func() {
				defer s.wg.Done()
				handle(c)
				_ = c.Close()
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			}()
		}
	}()
	t.Cleanup(s.stop)
	return s
}

func (s *server) stop() {
	_ = s.ln.Close()
	s.mu.Lock()
	for c := range s.conns {
		reset(c.(*net.TCPConn))
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// named returns a handler for a server. It answers each line with the server's name and the same
// line.
func named(name string) func(net.Conn) {
	return func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(c, "%s %s", name, line); err != nil {
				return
			}
		}
	}
}

type client struct {
	*net.TCPConn
	in *bufio.Reader
}

func connect(vip netip.AddrPort, from string) (*client, error) {
	d := net.Dialer{Timeout: wait.Patience}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := d.Dial("tcp", vip.String())
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(2 * wait.Patience))
	return &client{c.(*net.TCPConn), bufio.NewReader(c)}, nil
}

func (c *client) ask(line string) (string, error) {
	if _, err := fmt.Fprintf(c, "%s\n", line); err != nil {
		return "", err
	}
	var name, back string
	if _, err := fmt.Fscanf(c.in, "%s %s\n", &name, &back); err != nil {
		return "", err
	}
	if back != line {
		return "", fmt.Errorf("echoed line = %q, want %q", back, line)
	}
	return name, nil
}

func askOnce(vip netip.AddrPort, from string) (string, error) {
	c, err := connect(vip, from)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.ask("hello")
}

func mustConnect(t testing.TB, vip netip.AddrPort) *client {
	t.Helper()
	c, err := connect(vip, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (c *client) mustAsk(t testing.TB) string {
	t.Helper()
	name, err := c.ask("hello")
	if err != nil {
		t.Fatalf("request: error = %v, want nil", err)
	}
	return name
}

func eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	lab.Eventually(t, wait.Patience, what, ok)
}

// wantReset checks that a connection ends with a reset. It ignores data before the reset.
func wantReset(t testing.TB, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	if !isReset(err) {
		t.Errorf("connection: error = %v, want a reset", err)
	}
}

func isReset(err error) bool {
	return err != nil && errors.Is(err, errReset)
}
