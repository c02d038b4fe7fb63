package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
)

// TestFlowsOutliveICMPErrors makes a firewall reject a flow's datagrams for a short time.
// Afterwards, the flow must continue.
func TestFlowsOutliveICMPErrors(t *testing.T) {
	w := newTwoHosts(t)
	w.remote.Echo("udp", "s", netip.MustParseAddrPort("[fd00:9::2]:7000"))
	d := start(t, Options{})
	f := w.frontendsAt(t, 5300)[3]
	d.apply(f)
	c, err := w.remote.Dial(t.Context(), "udp", f.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "a first answer", func() error { // on a busy machine, datagrams may be lost
		_, err := lab.AskWithin(c, 500*time.Millisecond)
		return err
	})
	const reject = " OUTPUT -p udp --dport 7000 -j REJECT --reject-with icmp6-adm-prohibited"
	w.Host().Exec("sh", "-c", "ip6tables -I"+reject)
	eventually(t, "no answer through the firewall", func() error { // one failure is sufficient, because the next read returns the error, unless late answers to earlier datagrams arrive first
		if _, err := lab.AskWithin(c, 50*time.Millisecond); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	w.Host().Exec("sh", "-c", "ip6tables -D"+reject)
	eventually(t, "an answer once the firewall is gone", func() error {
		_, err := lab.AskWithin(c, 100*time.Millisecond)
		return err
	})
}

// TestErrorsOfFlows classifies the errors that a flow's socket may return. Only errors that mean
// that the backend refuses datagrams may end the flow.
func TestErrorsOfFlows(t *testing.T) {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EACCES, syscall.EPROTO, syscall.ENOPROTOOPT, syscall.EHOSTUNREACH} {
		if !refuses(os.NewSyscallError("read", e)) || passing(e) {
			t.Errorf("refuses(%v) = false, want true", e)
		}
	}
	for _, e := range []error{syscall.EMSGSIZE, syscall.ENOBUFS, syscall.EINTR} {
		if refuses(e) || !passing(os.NewSyscallError("read", e)) {
			t.Errorf("passing(%v) = false, want true", e)
		}
	}
}

func attached(t *testing.T, s syscall.Conn) int {
	t.Helper()
	raw, err := s.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	var errno syscall.Errno
	_ = raw.Control(func(fd uintptr) {
		var length uint32 // if there is no buffer, the kernel returns the required size
		r, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, 0, uintptr(unsafe.Pointer(&length)), 0)
		n, errno = max(int(length), int(r)), e
	})
	if errno != 0 {
		t.Fatal(errno)
	}
	return n
}

// TestStaleFiltersAreRemoved replaces a socket's filter with larger filters. The old filter must be
// removed even if the new one is too large.
func TestStaleFiltersAreRemoved(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/core/optmem_max"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root to limit the memory of filters")
	}
	old, err := os.ReadFile("/proc/sys/net/core/optmem_max")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/net/core/optmem_max", []byte("20480"), 0); err != nil {
		t.Skip("needs a writable limit of filter memory: ", err)
	}
	t.Cleanup(func() { _ = os.WriteFile("/proc/sys/net/core/optmem_max", old, 0) })
	conf := func(n int) *config {
		f := frontendAt("127.77.8.1:9000", netip.MustParseAddrPort("127.0.0.1:9"))
		for i := range n {
			f.Sources = append(f.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 32))
		}
		return &config{Frontend: f, serves: true}
	}
	ln, err := listenConfig(func(uintptr) error { return nil }).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, n := range []int{180, 181, 600} { // the second filter fits only after the first one was removed, and the third one never fits
		if err := refit(ln.(*net.TCPListener), conf(n)); err != nil {
			t.Fatal(err)
		}
		want := len(filterProgram(conf(n)))
		if n == 600 {
			want = 0
		}
		if got := attached(t, ln.(*net.TCPListener)); got != want {
			t.Errorf("filter for %d source ranges: instructions = %d, want %d", n, got, want)
		}
	}
}

// TestFlowsHaveRoomBesideConnections uses up the descriptor budget with connections. Flows must
// still get descriptors.
func TestFlowsHaveRoomBesideConnections(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{maxDescriptors: 64})
	g := frontendAt("127.77.8.2:9000/udp", udpServer(t, "127.0.0.1:0", "a"))
	d.apply(g)
	for port := range 4 { // several frontends are needed because each leaves some descriptors to others
		f := frontendAt(fmt.Sprintf("127.77.8.2:%d", 9000+port), s.addr)
		d.apply(f)
		for range 30 { // more than the frontend's share, so some of them wait
			mustConnect(t, f.AddrPort())
		}
	}
	eventually(t, "the bound", func() error {
		if used := d.budget.used.Load(); d.budget.limit-used > 2+d.budget.flows {
			return fmt.Errorf("used descriptors = %d, want nearly the whole budget", used)
		}
		return nil
	})
	for range 3 {
		if _, err := askUDP(udpClient(t, g.AddrPort()), "x"); err != nil {
			t.Errorf("flow: error = %v, want nil", err)
		}
	}
}

// TestNothingEntersAfterTheEnd closes a frontend and a dataplane. Afterwards, neither may accept a
// connection.
func TestNothingEntersAfterTheEnd(t *testing.T) {
	d, err := New(Options{Intercept: Bind, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	g := frontendAt("127.77.8.3:9000", netip.MustParseAddrPort("127.0.0.1:9"))
	f := newFrontend(d, g.Key)
	f.configure(g, d.counterLocked(g))
	if !f.enterLocked(&conn{f: f}) {
		t.Fatal("enter() before end() = false, want true")
	}
	if n := f.end(); n != 1 {
		t.Errorf("end() = %d, want 1", n)
	}
	if f.enterLocked(&conn{f: f}) {
		t.Error("enter() after end() = true, want false")
	}
	if !d.begin() {
		t.Error("begin() before Close = false, want true")
	}
	d.conns.Done()
	if err := d.Close(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	if d.begin() {
		t.Error("begin() after Close = true, want false")
	}
}

// TestTidyingDoesNotWalkConnections calls tidy for a frontend with 20,000 connections. While no
// backend's deadline passes, the call must take less than 20 µs.
func TestTidyingDoesNotWalkConnections(t *testing.T) {
	d, err := New(Options{Intercept: Bind, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background(), false)
	g := frontendAt("127.77.8.4:9000", netip.MustParseAddrPort("127.0.0.1:9"))
	g.IdleTimeout = time.Hour
	g.Backends[0].Until = time.Now().Add(time.Minute).Round(0)
	f := newFrontend(d, g.Key)
	f.configure(g, d.counterLocked(g))
	const n = 20000
	for range n {
		f.enterLocked(&conn{f: f, served: true, backend: f.conf.Load().backends[0]})
	}
	f.tidy(time.Now())   // records the current state
	fastest := time.Hour // other processes slow down some of the calls, but not all
	for range 1000 {
		began := time.Now()
		f.tidy(began)
		fastest = min(fastest, time.Since(began))
	}
	if fastest > 20*time.Microsecond {
		t.Errorf("tidy with %d connections took %s, want less than 20 µs", n, fastest)
	}
	if !strings.Contains(f.nextLost.String(), "m=") { // with a monotonic clock reading, setting the system clock can't end a drain
		t.Errorf("nextLost = %s, want a time with a monotonic clock reading", f.nextLost)
	}
	f.tidy(g.Backends[0].Until)
	if x := f.conns.next; !x.cut {
		t.Error("a connection continues after its backend's deadline")
	}
}

// TestRenamesKeepConnections renames a port and a service. Connections and flows must continue, and
// must still count towards max_connections.
func TestRenamesKeepConnections(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	other := serveAt(t, "127.0.0.1:0", named("other"))
	d := start(t, Options{})
	f, u := frontendAt("127.77.8.5:9000", s.addr), frontendAt("127.77.8.5:9000/udp", udpServer(t, "127.0.0.1:0", "a"))
	d.apply(f, u)
	c, flow := mustConnect(t, f.AddrPort()), udpClient(t, u.AddrPort())
	c.mustAsk(t)
	if _, err := askUDP(flow, "x"); err != nil {
		t.Fatal(err)
	}
	local := func() string {
		list, _ := dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{})
		for _, x := range list {
			if x.State == "flow" {
				return x.Since.String()
			}
		}
		return "none"
	}
	since := local()
	for i, edit := range []func(*balancer.Frontend){
		func(f *balancer.Frontend) { f.Port = "http" },
		func(f *balancer.Frontend) { f.Service = "renamed" },
		func(f *balancer.Frontend) {
			f.Port = "again"
			f.Backends[0].State, f.Backends[0].Weight = balancer.Draining, 0
		},
	} {
		d.apply(with(f, edit), with(u, edit))
		c.mustAsk(t)
		if _, err := askUDP(flow, "y"); err != nil || local() != since {
			t.Errorf("after edit %d: error = %v, the flow changed = %v; want nil, false", i, err, local() != since)
		}
	}
	bounded := with(f, func(f *balancer.Frontend) { f.Port = "bounded"; f.Backends[0].MaxConnections = 1 })
	d.apply(bounded)
	if _, err := askOnce(f.AddrPort(), ""); err == nil {
		t.Error("max_connections ignores a connection that was opened before the rename")
	}
	d.apply(with(bounded, func(g *balancer.Frontend) {
		g.Port = "moved"
		g.Backends = frontendAt(f.Key.String(), other.addr).Backends
	}))
	wantReset(t, c)
}

// TestRenameWhileDialling renames a service during a dial. The connection must be counted for the
// new name.
func TestRenameWhileDialling(t *testing.T) {
	d, err := New(Options{Intercept: Bind, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background(), false)
	g := frontendAt("127.77.8.6:9000", netip.MustParseAddrPort("127.0.0.1:9"))
	f := newFrontend(d, g.Key)
	f.configure(g, d.counterLocked(g))
	c := &conn{f: f}
	f.enterLocked(c)
	was, _, err := c.chooseLocked(nil)
	if err != nil {
		t.Fatal(err)
	}
	g = with(g, func(g *balancer.Frontend) { g.Service = "renamed" })
	f.configure(g, d.counterLocked(g))
	if !c.settleLocked(was) {
		t.Fatal("the dial was abandoned, want it to continue")
	}
	if before, now := was.active.Load(), f.conf.Load().backends[0].active.Load(); before != 0 || now != 1 {
		t.Errorf("active connections of the old name = %d, of the new name = %d; want 0, 1", before, now)
	}
}

// TestAffinityOutlivesRest makes a backend rest, and later makes it full. Afterwards, its clients
// must return to it. Only clients whose own attempt to connect to it failed must stay on the other
// backend.
func TestAffinityOutlivesRest(t *testing.T) {
	d, err := New(Options{Intercept: Bind, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background(), false)
	g := frontendAt("127.77.8.6:9000", netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80"))
	g.AffinityTimeout = time.Hour
	f := newFrontend(d, g.Key)
	f.configure(g, d.counterLocked(g))
	choose := func(i int, tried ...*backend) *backend {
		f.mu.Lock()
		defer f.mu.Unlock()
		b, _, err := f.chooseLocked(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 1), tried)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const clients = 100
	var of [clients]*backend
	for i := range clients {
		of[i] = choose(i)
		of[i].release()
	}
	back := func(why string) {
		t.Helper()
		for i := range clients {
			b := choose(i)
			b.release()
			if b != of[i] {
				t.Fatalf("%s: backend of client %d = %s, want %s", why, i, b.addr, of[i].addr)
			}
		}
	}
	first := f.conf.Load().backends[0]
	first.failed(d.now() + int64(time.Hour)) // simulates a failed attempt; the rest lasts longer than the test
	for i := range clients {
		b := choose(i)
		b.release()
		if b == first {
			t.Fatalf("client %d got the resting backend, want the other backend", i)
		}
	}
	first.answered()
	back("after the rest")
	full := with(g, func(g *balancer.Frontend) { g.Backends[0].MaxConnections = 1 })
	f.configure(full, d.counterLocked(full))
	first.active.Add(1)
	for i := range clients {
		choose(i).release()
	}
	first.release()
	back("after it was full")
	for i := range clients { // clients whose own attempt fails must move
		if of[i] == first {
			b := choose(i, first)
			b.release()
			of[i] = b
		}
	}
	back("after own failures")
	if strings.Contains(fmt.Sprint(of[0].addr), "10.0.0.1") {
		t.Error("a client stays on the backend that it could not reach, want the other backend")
	}
}
