package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// blackhole returns the address of a listener that does not answer, because its queue is full.
func blackhole(t testing.TB) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*unix.SockaddrInet4).Port))
	for {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		if info.Unacked > info.Sacked { // the queue is full
			return at
		}
		if c, err := net.DialTimeout("tcp", at.String(), time.Second); err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
}

// TestUnresponsiveBackendDelaysFew connects clients while one backend does not answer. Only a few
// connections may be delayed because of this backend.
func TestUnresponsiveBackendDelaysFew(t *testing.T) {
	hole := blackhole(t)
	a, b := serveAt(t, "127.0.0.1:0", named("a")), serveAt(t, "127.0.0.1:0", named("b"))
	d := start(t, Options{})
	f := frontendAt("127.77.4.1:9000", a.addr, b.addr, hole)
	f.ConnectTimeout = time.Second
	reports := collectReports(d)
	d.apply(f)
	began := time.Now()
	end := began.Add(3 * time.Second)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for time.Now().Before(end) {
				if _, err := askOnce(f.AddrPort(), ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// At the start, all clients may try the unresponsive backend at the same time. Later, only one
	// may try it after each rest and timeout. If the machine was paused, late answers may make the
	// other backends rest, so all clients may try the unresponsive backend again.
	took, late := time.Since(began), len(reports.of(a.addr))+len(reports.of(b.addr))
	if n, most := len(reports.of(hole)), 8*(1+late)+int(took/f.ConnectTimeout); n > most || n == 0 {
		t.Errorf("dials of the unresponsive backend = %d in %s, want 1 to %d", n, took, most)
	}
}

// TestCloseAndRemovalAbandonDials removes a backend while a dial hangs, and closes the dataplane
// while another dial hangs. Neither may wait for the dial.
func TestCloseAndRemovalAbandonDials(t *testing.T) {
	hole := blackhole(t)
	a := serveAt(t, "127.0.0.1:0", named("a"))
	d := start(t, Options{})
	f := frontendAt("127.77.4.2:9000", hole)
	f.ConnectTimeout = time.Minute
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	connecting := func() error {
		if list, _ := dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{}); len(list) != 1 || list[0].State != "connecting" || list[0].Backend != hole {
			return fmt.Errorf("connections = %v, want one in the state connecting", list)
		}
		return nil
	}
	eventually(t, "the dial", connecting)
	d.apply(with(f, func(g *balancer.Frontend) { *g = *frontendAt("127.77.4.2:9000", a.addr) }))
	if name := c.mustAsk(t); name != "a" {
		t.Errorf("server = %s, want a because the dial of the removed backend must be abandoned", name)
	}
	c.Close()
	d.apply(f)
	eventually(t, "the end of the first", func() error {
		if list, _ := dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{}); len(list) > 0 {
			return fmt.Errorf("connections = %v, want one in the state connecting", list)
		}
		return nil
	})
	c = mustConnect(t, f.AddrPort())
	eventually(t, "the second dial", connecting)
	started := time.Now()
	if err := d.Close(shortly(t), false); err != nil {
		t.Error(err)
	}
	if took := time.Since(started); took > wait.Patience {
		t.Errorf("Close took %s, want less", took)
	}
	wantReset(t, c)
}

func TestSourceRanges(t *testing.T) {
	l := lab.New(t)
	remote := l.Add("remote")
	l.Link(l.Host(), remote, "10.9.0.1/24", "10.9.0.2/24", "fd00:9::1/64", "fd00:9::2/64")
	remote.Default("10.9.0.1", "fd00:9::1")
	l.Host().AddAddr("lo", "10.96.0.1/32")
	l.Host().AddAddr("lo", "fd00:96::1/128")
	d := start(t, Options{})
	cases := []struct {
		sources string
		in      bool // source_ranges include the remote client
	}{
		{"", true},
		{"10.9.0.2/32 fd00:9::2/128", true},
		{"10.9.0.0/24 fd00:9::/64", true},
		{"0.0.0.0/0 ::/0", true},
		{"192.0.2.0/24 10.9.0.3/32 fd00:9::3/128 10.8.0.0/15 fd00:8::/31", true},
		{"192.0.2.0/24 10.9.0.3/32 fd00:9::3/128 fd00:9:0:0:1::/80", false},
		{"10.9.0.2/32", false}, // without an IPv6 prefix, no IPv6 client is included
	}
	for _, c := range cases {
		for _, key := range []string{"10.96.0.1:80/tcp", "10.96.0.1:80/udp", "[fd00:96::1]:80/tcp", "[fd00:96::1]:80/udp"} {
			k, _ := balancer.ParseKey(key)
			in := c.in || c.sources == "10.9.0.2/32" && k.Addr.Is4()
			t.Run(fmt.Sprintf("%s to %s", c.sources, key), func(t *testing.T) {
				backend := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 7000)
				if k.Addr.Is6() {
					backend = netip.MustParseAddrPort("[::1]:7000")
				}
				s := l.Host().Echo(string(k.Proto), "s", backend)
				defer s.Close()
				f := frontendAt(key, backend)
				for text := range strings.FieldsSeq(c.sources) {
					f.Sources = append(f.Sources, netip.MustParsePrefix(text))
				}
				d.apply(f)
				if err := try(t, l.Host(), k); err != nil {
					t.Errorf("client on the node: error = %v, want nil", err)
				}
				if in {
					if err := try(t, remote, k); err != nil {
						t.Errorf("client within source_ranges: error = %v, want nil", err)
					}
				} else if err, timeout := tryFor(t, remote, k, silence), net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
					t.Errorf("client outside source_ranges: error = %v, want a timeout", err)
				}
			})
		}
	}
}

// silence is how long tests wait to show that a client gets no answer.
const silence = 300 * time.Millisecond

func try(t *testing.T, from *lab.NS, k balancer.Key) error { return tryFor(t, from, k, wait.Patience) }

func tryFor(t *testing.T, from *lab.NS, k balancer.Key, within time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	c, err := from.Dial(ctx, string(k.Proto), k.AddrPort().String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = lab.AskWithin(c, within)
	return err
}

// TestExplainsWhyItCannotListen applies a frontend whose port another program uses. The error must
// explain how to find this program, and other frontends must be served.
func TestExplainsWhyItCannotListen(t *testing.T) {
	s := serveAt(t, "0.0.0.0:0", named("s"))
	other := serveAt(t, "127.0.0.1:0", named("other"))
	d := start(t, Options{})
	wildcard := frontendAt(fmt.Sprintf("127.77.4.5:%d", s.addr.Port()), other.addr)
	elsewhere := frontendAt("203.0.113.9:9000", other.addr) // a VIP that the host might have later
	fine := frontendAt("127.77.4.5:9000", other.addr)
	err := d.tryApply(wildcard, elsewhere, fine)
	var each dataplane.KeyErrors
	if !errors.As(err, &each) || len(each) != 1 {
		t.Fatalf("Apply = %v, want an error for a single key", err)
	}
	if err := each[wildcard.Key]; !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "ss -lnp") {
		t.Errorf("error = %v, want the port and the command that finds the program using it", err)
	}
	if _, err := askOnce(fine.AddrPort(), ""); err != nil {
		t.Errorf("client of another frontend: error = %v, want nil", err)
	}
	seen, err := d.Observe(t.Context())
	if err != nil || seen.Digests[fine.Key] != d.Digest(fine) || seen.Digests[elsewhere.Key] != d.Digest(elsewhere) || seen.Digests[wildcard.Key] != 0 {
		t.Errorf("Observe = %v, %v; want the failed frontend reported as damaged", seen, err)
	}
	d.remove(wildcard.Key, elsewhere.Key, fine.Key)
}

// exhaustionVar is the environment variable that makes the test binary act as the child process of
// TestDescriptorExhaustion.
const exhaustionVar = "VIPD_TEST_EXHAUSTION"

func TestDescriptorExhaustion(t *testing.T) {
	// If the descriptor budget is used up, no client may be lost: additional clients must wait in
	// the kernel's queue. If the system runs out of descriptors first, clients that were just
	// accepted may be lost after their connect timeout.
	for _, how := range []string{"budget", "emfile"} {
		t.Run(how, func(t *testing.T) {
			s := serveAt(t, "127.0.0.1:0", named("s"))
			cmd := exec.Command(os.Args[0], "-test.run=^TestExhaustedChild$", "-test.v")
			cmd.Env = append(os.Environ(), exhaustionVar+"="+how+" "+s.addr.String(), "VIPD_LAB=yes")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			vip := netip.MustParseAddrPort("127.77.4.6:9000")
			eventually(t, "the child", func() error { _, err := askOnce(vip, ""); return err })
			var held []*client
			for range 150 { // many more than 64 descriptors can serve, so the remaining ones must wait in the queue
				held = append(held, mustConnect(t, vip))
			}
			var answered atomic.Int64
			var wg sync.WaitGroup
			for i, c := range held {
				wg.Go(func() {
					if _, err := c.ask("x"); err == nil {
						answered.Add(1)
					} else if how == "budget" || !isReset(err) {
						t.Errorf("connection %d: error = %v, want nil", i, err)
					}
					c.Close() // makes room for the next connection
				})
			}
			wg.Wait()
			if answered.Load() == 0 {
				t.Error("answered connections = 0, want at least 1")
			}
			eventually(t, "afterwards", func() error { _, err := askOnce(vip, ""); return err })
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("child process: %v\n%s", err, out.String())
			}
		})
	}
}

// TestExhaustedChild serves clients with only a few descriptors, until its standard input is
// closed.
func TestExhaustedChild(t *testing.T) {
	how, backend, ok := strings.Cut(os.Getenv(exhaustionVar), " ")
	if !ok {
		t.Skip("this is the child of TestDescriptorExhaustion")
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		t.Fatal(err)
	}
	o := Options{}
	if how == "emfile" {
		o.maxDescriptors = 1000 // higher than the system's limit, so the system runs out of descriptors first
	}
	d := start(t, o)
	f := frontendAt("127.77.4.6:9000", netip.MustParseAddrPort(backend))
	if how == "emfile" {
		f.ConnectTimeout = time.Second // clients without a descriptor for the backend are reset after this timeout
	}
	d.apply(f)
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// queued returns the number of connections that wait in the kernel's accept queue for a listener.
func queued(t *testing.T, ln *listener) uint32 {
	t.Helper()
	info, err := unix.GetsockoptTCPInfo(ln.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		t.Fatal(err)
	}
	return info.Unacked
}

// TestManyListenersKeepTheBudget uses up the descriptor budget while clients wait at many
// listeners. The number of used descriptors must never exceed the budget.
func TestManyListenersKeepTheBudget(t *testing.T) {
	const listeners = 60
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{maxDescriptors: 200})
	var all []*balancer.Frontend
	for i := range listeners {
		all = append(all, frontendAt(fmt.Sprintf("127.77.4.7:%d", 9000+i), s.addr))
	}
	d.apply(all...)
	for _, f := range all { // waits until the frontend's listener is ready
		if _, err := askOnce(f.AddrPort(), ""); err != nil {
			t.Fatal(err)
		}
	}
	greedy := d.frontends[all[0].Key]
	var first []*client
	for range 100 { // more than this frontend's share
		first = append(first, mustConnect(t, all[0].AddrPort()))
	}
	eventually(t, "the first to have its share", func() error {
		if n := greedy.descriptors.Load(); d.budget.fair(n + 2) {
			return fmt.Errorf("connections = %d, want more", n)
		}
		return nil
	})
	others := map[*frontend]*client{}
	for _, f := range all[1:] {
		others[d.frontends[f.Key]] = mustConnect(t, f.AddrPort())
	}
	var held []*frontend // frontends whose clients wait in the kernel's accept queue
	eventually(t, "the clients of the others to wait", func() error {
		held = nil
		for f := range others {
			if f.descriptors.Load() == 0 && queued(t, f.ports[0].listener) == 1 {
				held = append(held, f)
			}
		}
		if used := d.budget.used.Load(); used > d.budget.limit {
			t.Fatalf("used descriptors = %d, want at most %d", used, d.budget.limit)
		}
		if len(held) < listeners/3 || d.budget.room(2+d.budget.flows) {
			return fmt.Errorf("waiting listeners = %d, want more", len(held))
		}
		return nil
	})
	d.remove(held[0].key)
	wantReset(t, others[held[0]])
	delete(others, held[0])
	for _, c := range first {
		c.Close()
	}
	for f, c := range others {
		if _, err := c.ask("x"); err != nil {
			t.Errorf("client of %s after descriptors became free: error = %v, want nil", f.key, err)
		}
	}
}

func shortly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
