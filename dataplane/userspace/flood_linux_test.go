package userspace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestFlowsOfBusyBackendsEnd closes flows while their backend continuously sends answers. The
// method receive must return immediately.
func TestFlowsOfBusyBackendsEnd(t *testing.T) {
	for want, end := range map[error]func(*net.UDPConn) error{
		net.ErrClosed:          (*net.UDPConn).Close,
		os.ErrDeadlineExceeded: func(c *net.UDPConn) error { return c.SetReadDeadline(longAgo) },
	} {
		b, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		x := &flow{socket: udpClient(t, b.LocalAddr().(*net.UDPAddr).AddrPort())}
		at := x.socket.LocalAddr().(*net.UDPAddr).AddrPort()
		send := func() { _, _ = b.WriteToUDPAddrPort([]byte("x"), at) }
		var stop atomic.Bool
		defer stop.Store(true)
		got, ended := atomic.Int64{}, make(chan error, 1)
		send()
		go func() {
			ended <- x.receive(func([]byte) {
				got.Add(1)
				for range 2 {
					if !stop.Load() {
						send()
					}
				}
			})
		}()
		wait.For(t, time.Second, "some datagrams", func() bool { return got.Load() > 1000 })
		go func() { _ = end(x.socket) }()
		select {
		case err := <-ended:
			if !errors.Is(err, want) {
				t.Errorf("flow ended with error = %v, want %v", err, want)
			}
		case <-time.After(wait.Bound(time.Second)):
			t.Errorf("the flow has not ended, want error %v", want)
		}
	}
}

// slowClient creates a client whose link is very slow, and a backend that continuously sends
// answers to it.
func slowClient(t *testing.T) (d *rig, f *balancer.Frontend, backend *net.UDPConn, sent *atomic.Int64) {
	lab.Need(t, "tc")
	w := newTwoHosts(t)
	w.Host().Exec("tc", "qdisc", "add", "dev", "remote", "root", "tbf", "rate", "8kbit", "burst", "4kb", "limit", "2mb")
	t.Cleanup(func() { w.Host().Exec("tc", "qdisc", "del", "dev", "remote", "root") }) // otherwise, a failed test would hang
	b, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	d = start(t, Options{})
	f = frontendAt("10.96.0.1:9000/udp", b.LocalAddr().(*net.UDPAddr).AddrPort())
	d.apply(f)
	c, err := w.remote.Dial(t.Context(), "udp", f.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return d, f, b, flood(t, b, flowFrom(t, b, c))
}

// flowFrom starts a client's flow. It returns the address from which the backend receives the
// flow's datagrams.
func flowFrom(t *testing.T, backend *net.UDPConn, client net.Conn) netip.AddrPort {
	t.Helper()
	_, _ = client.Write([]byte("go"))
	_, from, err := backend.ReadFromUDPAddrPort(make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	return from
}

// TestNothingWaitsForSlowClients removes a client's frontend while answers to the client wait in a
// small send buffer. The removal must not block.
func TestNothingWaitsForSlowClients(t *testing.T) {
	d, f, _, sent := slowClient(t)
	if err := d.frontends[f.Key].ports[0].packets.SetWriteBuffer(100 << 10); err != nil {
		t.Fatal(err)
	}
	wait.For(t, time.Second, "the first answers", func() bool { return d.Counters()[0].Out > 64<<10 })
	first := sent.Load()
	wait.For(t, time.Second, "more than the socket holds", func() bool { return sent.Load() > first+1000 })
	removed := make(chan struct{})
	go func() { d.remove(f.Key); close(removed) }()
	select {
	case <-removed:
	case <-time.After(wait.Bound(time.Second)):
		t.Fatal("the removal of the frontend blocks")
	}
}

// TestSlowClientsTakeNoAnswersOfOthers serves a slow client and a fast client of the same frontend.
// The fast client must receive its answers even while the slow client's answers wait for its link.
func TestSlowClientsTakeNoAnswersOfOthers(t *testing.T) {
	d, f, b, _ := slowClient(t)
	wait.For(t, time.Second, "the first answers", func() bool { return d.Counters()[0].Out > 64<<10 })
	c := udpClient(t, f.AddrPort())
	at := flowFrom(t, b, c)
	lost := 0
	for n := range 100 {
		_, _ = b.WriteToUDPAddrPort([]byte("y"), at)
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 10)); err != nil { // on a busy machine, the flood of answers may fill the kernel's queue
			if lost++; lost > 10 {
				t.Fatalf("answer %d, after %d lost answers: error = %v, want nil", n, lost, err)
			}
		}
	}
}

// flood sends datagrams until the test ends, and counts them.
func flood(t *testing.T, b *net.UDPConn, to netip.AddrPort) *atomic.Int64 {
	var stop atomic.Bool
	var wg sync.WaitGroup
	sent := &atomic.Int64{}
	wg.Go(func() {
		for !stop.Load() {
			_, _ = b.WriteToUDPAddrPort(make([]byte, 1200), to)
			sent.Add(1)
		}
	})
	t.Cleanup(func() { stop.Store(true); wg.Wait() })
	return sent
}

// TestNoClientWaitsForSlowBackends uses two backends, one of which has a very slow link. The other
// backend's clients must be served without delay.
func TestNoClientWaitsForSlowBackends(t *testing.T) {
	lab.Need(t, "tc")
	w := newTwoHosts(t)
	w.serve()
	w.Host().Exec("tc", "qdisc", "add", "dev", "remote", "root", "tbf", "rate", "8kbit", "burst", "4kb", "limit", "20mb")
	defer w.Host().Exec("tc", "qdisc", "del", "dev", "remote", "root") // otherwise, a failed test would hang
	d := start(t, Options{})
	f := frontendAt("127.77.7.1:9000/udp", netip.MustParseAddrPort("10.9.0.2:7000"), udpServer(t, "127.0.0.1:0", "a"))
	d.apply(f)
	clients := map[netip.AddrPort]*net.UDPConn{} // maps each backend to one of its clients
	for range 2 {
		c := udpClient(t, f.AddrPort())
		_, _ = c.Write([]byte("x"))
		eventually(t, "the flow", func() error {
			conns, err := dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{Client: c.LocalAddr().(*net.UDPAddr).AddrPort()})
			if err == nil && len(conns) == 1 {
				clients[conns[0].Backend] = c
				return nil
			}
			return fmt.Errorf("%v, %w", conns, err)
		})
	}
	slow, other := clients[netip.MustParseAddrPort("10.9.0.2:7000")], clients[f.Backends[1].Addr]
	_, _ = other.Read(make([]byte, 10))
	flood := make([]byte, 1200)
	for range 1000 {
		_, _ = slow.Write(flood)
	}
	eventually(t, "an answer to another client", func() error {
		_, err := askUDPFor(other, "x", silence)
		return err
	})
}
