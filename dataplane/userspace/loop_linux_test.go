package userspace

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/test/lab"
	"vipd/test/wait"
)

type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// TestSlowReadersDelayNobody opens 1,000 connections whose clients do not read, and one connection
// that exchanges messages. The messages must arrive, and the blocked connections must not use CPU
// time.
func TestSlowReadersDelayNobody(t *testing.T) {
	slow := 1000
	if testing.Short() {
		slow = 100
	}
	flood := serveAt(t, "127.0.0.1:0", func(c net.Conn) { _, _ = io.CopyN(c, zeros{}, 4<<20) })
	echo := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{})
	f := with(frontendAt("127.77.10.1:9000", flood.addr), func(f *balancer.Frontend) { f.MSS = 1000 }) // a small MSS makes the kernel use small buffers
	g := frontendAt("127.77.10.1:9001", echo.addr)
	d.apply(f, g)
	for range slow {
		stuck := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
			return control(raw, func(fd uintptr) error { return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
		}}
		c, err := stuck.Dial("tcp", f.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	kept := mustConnect(t, g.AddrPort())
	for range 100 {
		kept.mustAsk(t)
		if _, err := askOnce(g.AddrPort(), ""); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "loops without work", func() error {
		for _, l := range d.loops.all {
			if n := l.meter.load.Load(); n > 10 {
				return fmt.Errorf("load of loop %d = %d %%, want at most 10 %%", l.number, n)
			}
		}
		return nil
	})
	eventually(t, "the ends of the others", func() error {
		if n := len(connections(t, d.Dataplane)); n != slow+1 {
			return fmt.Errorf("connections = %d, want %d", n, slow+1)
		}
		return nil
	})
	kept.mustAsk(t)
}

type panicking struct{ pick.Picker }

func (panicking) Pick(pick.Flow, func(int) bool) int { panic("a bug") }

// TestPanicEndsOneConnection uses a picker that panics for one connection. Only this connection's
// client may be reset.
func TestPanicEndsOneConnection(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	log := &logged{}
	d := start(t, Options{Log: log.logger()})
	f := frontendAt("127.77.10.2:9000", s.addr)
	d.apply(f)
	kept := mustConnect(t, f.AddrPort())
	kept.mustAsk(t)
	front := d.frontends[f.Key]
	good := front.conf.Load()
	bad := *good
	bad.picker = panicking{}
	front.conf.Store(&bad)
	if _, err := askOnce(f.AddrPort(), ""); !isReset(err) {
		t.Errorf("client: error = %v, want a reset", err)
	}
	front.conf.Store(good)
	kept.mustAsk(t)
	mustConnect(t, f.AddrPort()).mustAsk(t)
	eventually(t, "a report of the panic", func() error {
		if !log.has("a bug in vipd has ended a connection") || !log.has("panicking.Pick") {
			return fmt.Errorf("the log contains no stack trace of the panic")
		}
		return nil
	})
}

// TestPanicBeforeAConnection causes a panic during the search for a client's frontend. The client
// must be reset, and the next client must be served.
func TestPanicBeforeAConnection(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	log := &logged{}
	d := start(t, Options{Log: log.logger()})
	f := frontendAt("127.77.10.11:9000", s.addr)
	d.apply(f)
	front := d.frontends[f.Key]
	front.mu.Lock()
	ln := front.ports[0].listener
	front.mu.Unlock()
	routeBy := func(to route) {
		done := make(chan struct{})
		d.loops.all[0].send(func(*loop) { ln.route = to; close(done) })
		<-done
	}
	good := ln.route
	routeBy(func(int) (*frontend, netip.AddrPort) { panic("a bug") })
	if _, err := askOnce(f.AddrPort(), ""); !isReset(err) {
		t.Errorf("client: error = %v, want a reset", err)
	}
	routeBy(good)
	mustConnect(t, f.AddrPort()).mustAsk(t)
	eventually(t, "a report of the panic", func() error {
		if !log.has("a bug in vipd has ended a connection") {
			return fmt.Errorf("the log does not report the panic")
		}
		return nil
	})
}

// TestPanicAtTheEndLeavesNothing causes a panic when a connection ends. It must still be possible
// to close the dataplane, and no descriptor may remain open.
func TestPanicAtTheEndLeavesNothing(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{Log: (&logged{}).logger()})
	f := frontendAt("127.77.10.12:9000", s.addr)
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	c.mustAsk(t)
	front := d.frontends[f.Key]
	front.mu.Lock()
	x := front.conns.next
	b := x.backend
	x.backend = nil // makes the release of the backend panic
	front.mu.Unlock()
	_ = c.Close()
	eventually(t, "no descriptors of connections", func() error {
		if n := front.descriptors.Load(); n != 0 {
			return fmt.Errorf("used descriptors = %d, want 0", n)
		}
		return nil
	})
	b.release()
}

// TestStalledLoopIsReported blocks a loop, and then lets it continue. The log must report the stall
// and its end.
func TestStalledLoopIsReported(t *testing.T) {
	log := &logged{}
	d := start(t, Options{Log: log.logger()})
	d.apply(frontendAt("127.77.10.3:9000", netip.MustParseAddrPort("127.0.0.1:9")))
	release := make(chan struct{})
	d.loops.all[0].send(func(*loop) { <-release })
	has := func(text string) {
		t.Helper()
		eventually(t, "the log", func() error {
			if !log.has(text) {
				return fmt.Errorf("the log does not contain %q", text)
			}
			return nil
		})
	}
	has("a relay loop is stuck")
	close(release)
	has("a relay loop is running again")
}

// TestLoopsDoNotWait holds a frontend's lock, and blocks the function that receives reports about
// dials. Another frontend's clients must be served immediately, and the first frontend's clients
// after its lock is released.
func TestLoopsDoNotWait(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	dead := serveAt(t, "127.0.0.1:0", named("dead"))
	dead.stop()
	d := start(t, Options{})
	release := make(chan struct{})
	d.ReportDials(func(balancer.Target, error) { <-release })
	f, g, h := frontendAt("127.77.10.4:9000", s.addr), frontendAt("127.77.10.4:9001", s.addr), frontendAt("127.77.10.4:9002", dead.addr)
	d.apply(f, g, h)
	_, _ = askOnce(h.AddrPort(), "")
	locked := d.frontends[f.Key]
	locked.mu.Lock()
	waiting := mustConnect(t, f.AddrPort())
	for range 10 {
		if _, err := askOnce(g.AddrPort(), ""); err != nil {
			t.Error(err)
		}
	}
	locked.mu.Unlock()
	waiting.mustAsk(t)
	close(release)
}

// TestMovedConnectionsLoseNothing moves connections between four loops while they transfer data.
// All bytes must arrive in order.
func TestMovedConnectionsLoseNothing(t *testing.T) {
	echo := serveAt(t, "127.0.0.1:0", func(c net.Conn) { _, _ = io.Copy(c, c) })
	setLoopCount(t, 4)
	d := start(t, Options{})
	f := frontendAt("127.77.10.5:9000", echo.addr)
	d.apply(f)
	if n := len(d.loops.all); n != 4 {
		t.Fatalf("number of loops = %d, want 4", n)
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() { stream(t, f.AddrPort(), time.Duration(i)*time.Millisecond, stop) })
	}
	moved := 0
	front := d.frontends[f.Key]
	eventually(t, "moves", func() error {
		front.mu.Lock()
		for c := front.conns.next; c != &front.conns; c = c.next {
			c.loop.send(func(l *loop) {
				front.mu.Lock()
				mine := c.loop == l
				front.mu.Unlock()
				if mine {
					l.move(c, d.loops.all[(l.number+1)%len(d.loops.all)])
				}
			})
			moved++
		}
		front.mu.Unlock()
		if moved < 200 {
			return fmt.Errorf("moved connections = %d, want at least 200", moved)
		}
		return nil
	})
	close(stop)
	running.Wait()
}

// TestBusyLoopSharesItsConnections sets the loads of loops. A busy loop must move half of its
// active connections to a loop with a low load. When its load is low again, they must return.
func TestBusyLoopSharesItsConnections(t *testing.T) {
	d := start(t, Options{})
	a, b := &loop{d: d.Dataplane, number: 0}, &loop{d: d.Dataplane, number: 1}
	d.loops.all = []*loop{a, b}
	defer func() { d.loops.all = nil }()
	for _, c := range []struct {
		name         string
		loads        [2]int64
		of           *loop
		left, number int
	}{
		{"busy", [2]int64{90, 10}, a, 5, 1},
		{"both busy", [2]int64{90, 60}, a, 0, 0},
		{"enough time", [2]int64{80, 0}, a, 0, 0},
		{"calm", [2]int64{10, 20}, b, 10, 0},
		{"not calm", [2]int64{30, 20}, b, 0, 0},
	} {
		a.meter.load.Store(c.loads[0])
		b.meter.load.Store(c.loads[1])
		c.of.spill = spill{steady: 10}
		c.of.balance()
		if s := c.of.spill; s.left != c.left || s.left > 0 && s.to.number != c.number {
			t.Errorf("%s: connections to move = %d, to loop %v; want %d, to loop %d", c.name, s.left, s.to, c.left, c.number)
		}
	}
	a.meter.load.Store(90)
	b.meter.load.Store(40)
	if got := a.freest(); got != b {
		t.Errorf("first loop with load 90: loop of a new connection = %d, want 1", got.number)
	}
	a.meter.load.Store(50)
	if got := a.freest(); got != a {
		t.Errorf("first loop with load 50: loop of a new connection = %d, want 0", got.number)
	}
}

// TestBusyLoopUsesAllOthers chooses loops for many new connections before the loads are measured
// again. Each loop with a low load must get some of the connections, and the busy loop none.
func TestBusyLoopUsesAllOthers(t *testing.T) {
	d := start(t, Options{})
	var all []*loop
	for i, load := range []int64{100, 20, 10, 0} {
		all = append(all, &loop{d: d.Dataplane, number: i})
		all[i].meter.load.Store(load)
	}
	was := d.loops.all
	d.loops.all = all
	defer func() { d.loops.all = was }()
	got := [4]int{}
	for range 1200 {
		got[all[0].freest().number]++
	}
	if got[0] > 0 || got[1] < 100 || got[2] < 100 || got[3] < 100 {
		t.Errorf("new connections by loop = %v, want 0 for the first and at least 100 for each other loop", got)
	}
}

// TestQuietLoopHasNoLoad makes a loop busy, and then leaves it only an idle connection. The load
// must soon become 0, before the connection's timers are due.
func TestQuietLoopHasNoLoad(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{})
	f := frontendAt("127.77.10.9:9000", s.addr)
	d.apply(f)
	mustConnect(t, f.AddrPort()).mustAsk(t)
	l := d.loops.all[0]
	began := time.Now()
	done := make(chan struct{})
	l.send(func(l *loop) {
		defer close(done)
		l.wheel.set(&l.table.entries[0].c.timer, time.Minute)
		l.meter.load.Store(100)
	})
	<-done
	eventually(t, "a loop without load", func() error {
		if n := l.meter.load.Load(); n != 0 {
			return fmt.Errorf("load = %d %%, want 0", n)
		}
		return nil
	})
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the load became 0 after %v, want at most a few periods", took)
	}
}

// TestOptionsOfConnections reads the options of a connection's two sockets. Keepalives and
// TCP_NODELAY must be enabled on both.
func TestOptionsOfConnections(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{})
	f := frontendAt("127.77.10.6:9000", s.addr)
	d.apply(f)
	mustConnect(t, f.AddrPort()).mustAsk(t)
	front := d.frontends[f.Key]
	front.mu.Lock()
	c := front.conns.next
	front.mu.Unlock()
	done := make(chan struct{})
	c.loop.send(func(l *loop) { // enables keepalives, as a timer does after keepAfter
		defer close(done)
		l.keep(c)
		for i := range c.sides {
			for _, o := range append(keepAliveOptions, socketOption{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}) {
				if got, err := unix.GetsockoptInt(c.sides[i].fd, o.level, o.name); got != o.value || err != nil {
					t.Errorf("socket option %d on side %d = %d, %v; want %d", o.name, i, got, err, o.value)
				}
			}
		}
	})
	<-done
}

// TestBackendIsNotItsOwnClient dials a backend whose port is the only local port that the kernel
// may choose, so the socket connects to itself. The dial must count as refused.
func TestBackendIsNotItsOwnClient(t *testing.T) {
	lab.New(t)
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(file, old, 0) })
	if err := os.WriteFile(file, []byte("20001 20001"), 0); err != nil {
		t.Fatal(err)
	}
	d := start(t, Options{})
	f := frontendAt("127.77.10.7:9000", netip.MustParseAddrPort("127.0.0.1:20001"))
	reports := collectReports(d)
	d.apply(f)
	for i := range 3 {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 30001 + i}, Timeout: wait.Patience}
		c, err := dialer.Dial("tcp", f.AddrPort().String())
		if err == nil {
			wantReset(t, c)
			_ = c.Close()
		} else if !isReset(err) {
			t.Error(err)
		}
	}
	awaitReport(t, reports, f.Backends[0].Addr, syscall.ECONNREFUSED, func() {})
}

// TestListenerWithoutLoopIsRefused tries to open listeners while the loop can't watch them. No
// socket may remain open, so the next attempt can open the listeners.
func TestListenerWithoutLoopIsRefused(t *testing.T) {
	d := start(t, Options{})
	d.loops.all = []*loop{{d: d.Dataplane, poller: poller{epoll: -1}}}
	defer func() { d.loops.all = nil }()
	open := func() *net.TCPListener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln.(*net.TCPListener)
	}
	p := &portSockets{f: &frontend{d: d.Dataplane}}
	if err := p.accept(open()); err == nil || p.listener != nil {
		t.Errorf("listener of a port = %v, error = %v; want no listener and an error", p.listener, err)
	}
	y := &redirectFamily{r: &redirect{d: d.Dataplane}}
	if err := y.accept(open()); err == nil || y.shared != nil || len(d.accepts) > 0 {
		t.Errorf("shared listener = %v, error = %v; want no listener and an error", y.shared, err)
	}
	if n := d.budget.used.Load(); n != 0 {
		t.Errorf("counted descriptors = %d, want 0", n)
	}
}

// TestLogsDelayNoClient makes writes to the log block. A client that may not connect must still be
// reset as soon as the node's own addresses have been read.
func TestLogsDelayNoClient(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{})
	f := with(frontendAt("127.77.10.10:9000", s.addr), func(f *balancer.Frontend) {
		f.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	})
	d.apply(f)
	started, release := make(chan struct{}), make(chan struct{})
	d.aside.do(func() { close(started); <-release })
	<-started
	defer close(release)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(pair[0]), "client")
	defer func() { _ = socket.Close() }()
	d.budget.take(2)
	front := d.frontends[f.Key]
	d.loops.all[0].send(func(l *loop) { l.check(front, pair[1], netip.MustParseAddrPort("198.51.100.7:1024"), front.vip) })
	ended := make(chan error, 1)
	go func() {
		_, err := socket.Read(make([]byte, 1))
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the frontend sent data, want a reset")
		}
	case <-time.After(wait.Patience):
		t.Error("the client was not reset while the log blocks")
	}
}

// TestWheel sets timers with various durations. Each timer must expire once, when it is due.
func TestWheel(t *testing.T) {
	var w wheel
	w.init(7)
	got := map[*conn]int64{}
	want := map[*conn]int64{}
	for _, ticks := range []int64{1, 2, 2, 100, wheelSlots, 3*wheelSlots + 5} {
		c := &conn{}
		c.timer.owner = c
		w.set(&c.timer, time.Duration(ticks)*tick)
		want[c] = 7 + ticks + 1
	}
	stopped := &conn{}
	w.set(&stopped.timer, tick)
	w.stop(&stopped.timer)
	again := &conn{}
	again.timer.owner = again
	w.set(&again.timer, tick)
	w.set(&again.timer, 50*tick)
	want[again] = 7 + 51
	if n := w.idle(); n != 1 { // the next slot contains a timer that is due only after another full turn of the wheel
		t.Errorf("ticks to the next slot with timers = %d, want 1", n)
	}
	for now := int64(8); now < 4*wheelSlots; now++ {
		w.advance(now, func(c *conn) {
			if got[c] != 0 {
				t.Errorf("a timer expired twice, at %d and %d", got[c], now)
			}
			got[c] = now
		})
	}
	for c, due := range want {
		if got[c] != due {
			t.Errorf("a timer expired at %d, want %d", got[c], due)
		}
	}
	if len(got) != len(want) || w.count != 0 {
		t.Errorf("expired timers = %d, remaining timers = %d; want %d and 0", len(got), w.count, len(want))
	}
}

// TestLoopsAddProcessors starts and closes a dataplane. While it runs, GOMAXPROCS must be higher by
// the number of its loops.
func TestLoopsAddProcessors(t *testing.T) {
	setLoopCount(t, 3)
	for range 2 {
		t.Run("running", func(t *testing.T) {
			start(t, Options{}).apply(frontendAt("127.77.10.6:9000", netip.MustParseAddrPort("127.0.0.1:1")))
			if got := runtime.GOMAXPROCS(0); got != 6 {
				t.Errorf("GOMAXPROCS while three loops run = %d, want 6", got)
			}
		})
		if got := runtime.GOMAXPROCS(0); got != 3 {
			t.Errorf("GOMAXPROCS after the loops have stopped = %d, want 3", got)
		}
	}
}

// setLoopCount makes the test's dataplanes use n loops, as on a host with n CPUs.
func setLoopCount(t *testing.T, n int) {
	t.Helper()
	set := func(n int, fixed bool) (before int) {
		before = processors.change(0)
		processors.mu.Lock()
		defer processors.mu.Unlock()
		processors.base, processors.fixed = n, fixed
		runtime.GOMAXPROCS(n + processors.added)
		return before
	}
	before := set(n, true)
	t.Cleanup(func() { set(before, false) })
}

// TestProcessorsFollowCPULimits restricts the thread to one CPU while a loop runs, and ends the
// restriction. The next refresh must change GOMAXPROCS, which includes the loop's processor.
func TestProcessorsFollowCPULimits(t *testing.T) {
	if runtime.NumCPU() < 2 || os.Getenv("GOMAXPROCS") != "" {
		t.Skip("needs two CPUs, and no variable GOMAXPROCS")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !all.IsSet(first) {
		first++
	}
	one.Set(first)
	s := &loops{all: []*loop{{}}, stalled: make([]time.Duration, 1)}
	want := processors.change(1) + 1
	defer processors.change(-1)
	for i, limit := range []*unix.CPUSet{&one, &all} {
		if err := unix.SchedSetaffinity(0, limit); err != nil {
			t.Fatal(err)
		}
		s.watch(int64(i+1) * int64(refreshInterval))
		if got, want := runtime.GOMAXPROCS(0), []int{2, want}[i]; got != want {
			t.Errorf("GOMAXPROCS with %d CPUs and a loop = %d, want %d", limit.Count(), got, want)
		}
	}
}
