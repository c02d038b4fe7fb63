package userspace

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/test/lab"
	"vipd/test/wait"
)

// listenEverywhere starts a program on the host that listens on a port at all addresses.
func (w *twoHosts) listenEverywhere(port int) {
	for _, network := range []string{"tcp", "udp"} { // a single socket serves IPv4 and IPv6
		w.Host().Echo(network, "squatter", netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)))
	}
}

func closedOf(all []*balancer.Frontend, edit ...func(*balancer.Frontend)) []*balancer.Frontend {
	closed := make([]*balancer.Frontend, len(all))
	for i, f := range all {
		closed[i] = with(f, func(f *balancer.Frontend) {
			f.Backends[0].State, f.Backends[0].Weight = balancer.Down, 0
			for _, e := range edit {
				e(f)
			}
		})
	}
	return closed
}

// TestClientsNeverReachProgramsOfTheHost starts a program on the host that listens on the
// frontends' port. The VIPs' clients must never reach this program, whatever the frontends' states
// are.
func TestClientsNeverReachProgramsOfTheHost(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	w.listenEverywhere(80)
	d := redirecting(t)
	all := w.frontendsAt(t, 80)
	closed := closedOf(all)
	d.apply(closed...) // these frontends have never been served
	wantRefused(t, w, all...)
	d.apply(all...)
	wantServed(t, w, all...)
	d.apply(closed...)
	wantRefused(t, w, all...)
	d.apply(closedOf(all, func(f *balancer.Frontend) { f.NoEndpoints = balancer.DropClients })...)
	wantSilence(t, w, all...)
	d.apply(all...)
	wantServed(t, w, all...)

	held, err := w.remote.Dial(t.Context(), "tcp", all[0].AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := lab.Ask(held); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Close(ctx, false) }()
	eventually(t, "the closed port", func() error {
		if err := tryFor(t, w.remote, all[3].Key, silence); err == nil || !strings.Contains(err.Error(), "refused") {
			return fmt.Errorf("error = %w, want connection refused", err)
		}
		return nil
	})
	wantRefused(t, w, all...)
	wantEcho(t, held)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func wantSilence(t *testing.T, w *twoHosts, all ...*balancer.Frontend) {
	t.Helper()
	for _, f := range all {
		for _, from := range []*lab.NS{w.Host(), w.remote} {
			err := tryFor(t, from, f.Key, silence)
			if err == nil || strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "reset") {
				t.Errorf("request to %s from %s: error = %v, want a timeout", f.Key, from.Name, err)
			}
		}
	}
}

// TestClosedPortsAreHeld repeatedly closes a frontend's port and opens it again. Another program
// must never be able to bind the port.
func TestClosedPortsAreHeld(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	a := udpServer(t, "127.0.0.1:0", "a")
	d := start(t, Options{})
	all := []*balancer.Frontend{frontendAt("127.77.7.1:9000", s.addr), frontendAt("127.77.7.1:9000/udp", a)}
	for i, f := range all {
		all[i].IdleTimeout = 0
		free := fmt.Sprintf("0.0.0.0:%d", f.Key.Port)
		wantHeld := func(when string) {
			t.Helper()
			var err error
			if f.Proto == balancer.UDP {
				var pc net.PacketConn
				if pc, err = net.ListenPacket("udp4", free); err == nil {
					pc.Close()
				}
			} else {
				var ln net.Listener
				if ln, err = net.Listen("tcp4", free); err == nil {
					ln.Close()
				}
			}
			if err == nil {
				t.Errorf("%s: another program can bind the port of %s, want an error", when, f.Key)
			}
		}
		closed := closedOf(all[i : i+1])[0]
		d.apply(closed)
		wantHeld("closed")
		d.apply(f)
		wantHeld("open")
		if f.Proto == balancer.TCP {
			c := mustConnect(t, f.AddrPort())
			c.mustAsk(t)
			d.apply(closed) // the port must close although a connection is established
			wantHeld("closed again")
			if _, err := connect(f.AddrPort(), ""); err == nil {
				t.Error("a closed port accepts a connection, want it refused")
			}
			d.apply(f)
			c.mustAsk(t)
			if _, err := askOnce(f.AddrPort(), ""); err != nil {
				t.Errorf("client after the port was opened again: error = %v, want nil", err)
			}
			d.apply(closed)
			wantHeld("closed for good")
		}
		if seen, err := d.Observe(t.Context()); err != nil || seen.Digests[f.Key] == 0 {
			t.Errorf("Observe = %v, %v; want the frontend unchanged", seen, err)
		}
		d.remove(f.Key)
	}
}

// TestPortsAreHeldWhileConnectionsDrain closes a dataplane while a connection is open. During the
// drain, the connection must continue, new clients must be refused, and no other program may bind
// the ports.
func TestPortsAreHeldWhileConnectionsDrain(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{})
	f, silent := frontendAt("127.77.7.2:9000", s.addr), frontendAt("127.77.7.2:9001", s.addr)
	u := frontendAt("127.77.7.2:9002/udp", udpServer(t, "127.0.0.1:0", "a"))
	silent.NoEndpoints = balancer.DropClients
	d.apply(f, silent, u)
	c := mustConnect(t, f.AddrPort())
	c.mustAsk(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Close(ctx, false) }()
	eventually(t, "the closed port", func() error {
		if x, err := connect(f.AddrPort(), ""); err == nil {
			x.Close()
			return fmt.Errorf("a new client can connect, want it refused")
		}
		if _, err := askUDPFor(udpClient(t, u.AddrPort()), "x", silence); err == nil {
			return fmt.Errorf("the UDP port still answers, want no answer")
		}
		return nil
	})
	c.mustAsk(t)
	for _, port := range []int{9000, 9001} {
		if ln, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port)); err == nil {
			ln.Close()
			t.Errorf("another program can bind port %d during the drain, want an error", port)
		}
	}
	if pc, err := net.ListenPacket("udp4", "0.0.0.0:9002"); err == nil {
		pc.Close()
		t.Error("another program can bind the UDP port during the drain, want an error")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantReset(t, c)
}

type failing struct {
	redirector
	err error
}

func (f *failing) Set(ctx context.Context, ports map[balancer.Key]uint16) error {
	if f.err != nil {
		return f.err
	}
	return f.redirector.Set(ctx, ports)
}

// TestRemovalsThatFailAreTriedAgain makes the removal of a redirect fail. The next Apply must
// remove the redirect.
func TestRemovalsThatFailAreTriedAgain(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	f := w.frontendsAt(t, 80)[0]
	y := d.tables.(*redirect).families[inet.Of(f.Key.Addr)]
	kernel := &failing{redirector: y.kernel}
	y.kernel = kernel
	d.apply(f)
	kernel.err = os.ErrPermission
	removal := []dataplane.Change{{Key: f.Key}}
	if err := d.Apply(t.Context(), removal); err == nil {
		t.Fatal("Apply = nil, want an error")
	}
	kernel.err = nil
	if err := d.Apply(t.Context(), removal); err != nil {
		t.Fatal(err)
	}
	if got := w.Host().Exec("nft", "list", "map", "ip", "vipd-redirect", "ports"); strings.Contains(got, "10.96.0.1 . tcp . 80") {
		t.Errorf("redirects = %s, want no redirect for 10.96.0.1:80", got)
	}
}

// TestLookingCostsLittle applies 2,000 redirects in one batch. Intact may then need at most 10 ms.
func TestLookingCostsLittle(t *testing.T) {
	w := newTwoHosts(t)
	d := redirecting(t)
	var batch []dataplane.Change
	for port := 1000; port < 3000; port++ {
		f := w.frontendsAt(t, port)[0]
		batch = append(batch, dataplane.Change{Key: f.Key, New: f})
	}
	if err := d.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if reason, err := d.Intact(t.Context()); reason != "" || err != nil {
		t.Fatalf("Intact = %q, %v; want no reason", reason, err)
	}
	fastest := time.Hour // other processes slow down some of the checks, but not all
	for range 100 {
		began := time.Now()
		if reason, err := d.Intact(t.Context()); reason != "" || err != nil {
			t.Fatalf("Intact = %q, %v; want no reason", reason, err)
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest > 10*time.Millisecond {
		t.Errorf("Intact took %s, want at most 10 ms", fastest)
	} else {
		t.Logf("a look takes %s", fastest)
	}
}

// slow is a redirector whose first change hangs until goOn is closed.
type slow struct {
	redirector
	once          sync.Once
	started, goOn chan bool
}

func (s *slow) Set(ctx context.Context, ports map[balancer.Key]uint16) error {
	s.once.Do(func() {
		s.started <- true
		<-s.goOn
	})
	return s.redirector.Set(ctx, ports)
}

// TestCountersDoNotWaitForTables calls Counters and lists connections while a change to the
// redirects hangs. Neither call may wait for this change.
func TestCountersDoNotWaitForTables(t *testing.T) {
	w := newTwoHosts(t)
	d := redirecting(t)
	f := w.frontendsAt(t, 80)[0]
	y := d.tables.(*redirect).families[inet.Of(f.Key.Addr)]
	started, goOn := make(chan bool), make(chan bool)
	y.kernel = &slow{redirector: y.kernel, started: started, goOn: goOn}
	done := make(chan error)
	go func() { done <- d.tryApply(f) }()
	<-started
	asked := make(chan bool)
	go func() {
		d.Counters()
		_, _ = dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{})
		close(asked)
	}()
	select {
	case <-asked:
	case <-time.After(wait.Patience):
		t.Error("Counters or the list of connections waited for the redirects")
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestComesBackWhileItDrains makes a userspace dataplane yield to another mode. While it drains, a
// second userspace dataplane replaces the other mode. The first dataplane must not affect the
// second one.
func TestComesBackWhileItDrains(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	all := w.frontendsAt(t, 80)
	// This rule replaces the other mode's rules. It makes the kernel continue to track connections,
	// so established connections stay redirected.
	w.Host().Exec("iptables", "-t", "nat", "-A", "PREROUTING", "-m", "conntrack", "--ctstate", "INVALID", "-j", "RETURN")
	first := redirecting(t)
	first.apply(all...)
	held, err := w.remote.Dial(t.Context(), "tcp", all[0].AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := lab.Ask(held); err != nil {
		t.Fatal(err)
	}
	if err := first.Yield(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantEcho(t, held)
	second := redirecting(t)
	second.apply(all...)
	wantServed(t, w, all...)
	done := make(chan error)
	go func() { done <- first.Close(t.Context(), false) }()
	wantEcho(t, held)
	_ = held.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantServed(t, w, all...)
	if reason, err := second.Intact(t.Context()); reason != "" || err != nil {
		t.Errorf("Intact = %q, %v; want no reason", reason, err)
	}
}
