package userspace

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/wait"
)

// TestFlowsOfBusyBackendsEnd: the next datagram is always there before the last one is dealt with.
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
				t.Errorf("got %v at the end, want %v", err, want)
			}
		case <-time.After(wait.Bound(time.Second)):
			t.Errorf("it goes on for ever, want %v", want)
		}
	}
}

// TestNothingWaitsForSlowClients: a client's link takes next to nothing of what its backend sends.
func TestNothingWaitsForSlowClients(t *testing.T) {
	lab.Need(t, "tc")
	w := newTown(t)
	w.Host().Exec("tc", "qdisc", "add", "dev", "remote", "root", "tbf", "rate", "8kbit", "burst", "4kb", "limit", "20mb")
	defer w.Host().Exec("tc", "qdisc", "del", "dev", "remote", "root") // where the test fails, ends the wait
	b, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	d := start(t, Options{})
	f := frontendAt("10.96.0.1:9000/udp", b.LocalAddr().(*net.UDPAddr).AddrPort())
	d.apply(f)
	c, err := w.remote.Dial(t.Context(), "udp", f.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write([]byte("go"))
	_, from, err := b.ReadFromUDPAddrPort(make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	sent := flood(t, b, from)
	wait.For(t, time.Second, "the first answers", func() bool { return d.Counters()[0].Out > 64<<10 })
	first := sent.Load()
	wait.For(t, time.Second, "more than the socket holds", func() bool { return sent.Load() > first+1000 })
	removed := make(chan struct{})
	go func() { d.remove(f.Key); close(removed) }()
	select {
	case <-removed:
	case <-time.After(wait.Bound(time.Second)):
		t.Fatal("removing the frontend takes for ever")
	}
}

// flood sends datagrams until the end of the test, and counts them.
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
