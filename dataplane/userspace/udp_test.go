package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/wait"
)

// udpServer starts a server that answers each datagram with its name, a space and the datagram. It
// answers an empty datagram with an empty datagram.
func udpServer(t testing.TB, addr, name string) netip.AddrPort {
	t.Helper()
	at, stop := startUDPServer(t, addr, name)
	t.Cleanup(stop)
	return at
}

func startUDPServer(t testing.TB, addr, name string) (netip.AddrPort, func()) {
	t.Helper()
	pc, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	u := pc.(*net.UDPConn)
	_ = u.SetReadBuffer(4 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, datagram)
		for {
			n, from, err := u.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if n == 0 {
				_, _ = u.WriteToUDPAddrPort(nil, from)
				continue
			}
			_, _ = u.WriteToUDPAddrPort(append([]byte(name+" "), buf[:n]...), from)
		}
	}()
	return u.LocalAddr().(*net.UDPAddr).AddrPort(), func() { u.Close(); <-done }
}

func udpClient(t testing.TB, vip netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(vip))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func askUDP(c *net.UDPConn, text string) (string, error) { return askUDPFor(c, text, wait.Patience) }

func askUDPFor(c *net.UDPConn, text string, within time.Duration) (string, error) {
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	buf := make([]byte, datagram)
	n, err := c.Read(buf)
	if err != nil {
		return "", err
	}
	name, back, _ := strings.Cut(string(buf[:n]), " ")
	if back != text {
		return name, fmt.Errorf("answer = %d bytes, want %d", len(back), len(text))
	}
	return name, nil
}

// TestIdleFrontendsHoldNoBuffers applies many services, and sends one request to each. Afterwards,
// idle frontends and flows must not hold any buffers.
func TestIdleFrontendsHoldNoBuffers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems use a buffer for each waiting flow")
	}
	const n = 200
	d := start(t, Options{})
	at := udpServer(t, "127.0.0.1:0", "a")
	var all []*balancer.Frontend
	for i := range n {
		f := frontendAt(fmt.Sprintf("127.77.2.77:%d/udp", 9000+i), at)
		if wait.Race { // under the race detector, the pool retains buffers
			f.IdleTimeout = time.Second
		}
		all = append(all, f)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // the first collection only moves pooled buffers to the victim cache, and the second one frees them
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	d.apply(all...)
	for _, f := range all {
		if _, err := askUDP(udpClient(t, f.AddrPort()), "hello"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "buffers to go", func() error {
		if size := heap() - before; size > n*datagram/4 {
			return fmt.Errorf("memory of %d frontends with one flow each = %d bytes, want less", n, size)
		}
		return nil
	})
}

// TestFlowsMoveFromDeadBackends stops the backend of a flow. The flow must move to another backend.
func TestFlowsMoveFromDeadBackends(t *testing.T) {
	a, stopA := startUDPServer(t, "127.0.0.1:0", "a")
	d := start(t, Options{})
	f := frontendAt("127.77.2.3:9000/udp", a, udpServer(t, "127.0.0.1:0", "b"))
	d.apply(f)
	var c *net.UDPConn
	for range 2 { // one of the two clients gets backend a
		c = udpClient(t, f.AddrPort())
		if name, err := askUDP(c, "x"); err != nil {
			t.Fatal(err)
		} else if name == "a" {
			break
		}
	}
	stopA()
	eventually(t, "the other backend", func() error { // the first datagram causes only an ICMP error
		name, err := askUDPFor(c, "y", 300*time.Millisecond)
		if name != "b" {
			return fmt.Errorf("server = %q, %v; want b", name, err)
		}
		return nil
	})
}

// TestUDPWithoutBackends drains the only backend of a UDP frontend. Its flow must continue.
// Afterwards, new clients must be refused or, with "drop", get no answer.
func TestUDPWithoutBackends(t *testing.T) {
	a := udpServer(t, "127.0.0.1:0", "a")
	d := start(t, Options{})
	f := frontendAt("127.77.2.5:9000/udp", a)
	f.IdleTimeout = time.Hour
	d.apply(f)
	c := udpClient(t, f.AddrPort())
	if _, err := askUDP(c, "x"); err != nil {
		t.Fatal(err)
	}
	down := with(f, func(f *balancer.Frontend) { f.Backends[0].State, f.Backends[0].Weight = balancer.Draining, 0 })
	d.apply(down)
	if name, err := askUDP(c, "established"); name != "a" {
		t.Errorf("established flow: server = %q, %v; want a", name, err)
	}
	d.apply(with(down, func(f *balancer.Frontend) { f.IdleTimeout = 100 * time.Millisecond }))
	eventually(t, "the closed port", func() error {
		if _, err := askUDPFor(udpClient(t, f.AddrPort()), "new", 300*time.Millisecond); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("new client: error = %v, want connection refused", err)
		}
		return nil
	})
	d.apply(f)
	if name, err := askUDP(c, "back"); name != "a" {
		t.Errorf("after the backend was added again: server = %q, %v; want a", name, err)
	}
	d.apply(with(down, func(f *balancer.Frontend) { f.NoEndpoints = balancer.DropClients }))
	if _, err := askUDPFor(udpClient(t, f.AddrPort()), "new", 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("client with no_endpoints = drop: error = %v, want a timeout", err)
	}
}

// TestFlowsEnd opens more flows than the limit permits. Each flow beyond the limit must replace the
// flow that has been idle the longest, and idle_timeout must end all remaining flows.
func TestFlowsEnd(t *testing.T) {
	a := udpServer(t, "127.0.0.1:0", "a")
	d := start(t, Options{maxFlows: 10})
	f := frontendAt("127.77.2.6:9000/udp", a)
	f.IdleTimeout = time.Hour
	d.apply(f)
	first := udpClient(t, f.AddrPort())
	for range 30 { // many more than the limit permits; the busy flow must stay
		if _, err := askUDP(udpClient(t, f.AddrPort()), "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := askUDP(first, "y"); err != nil {
			t.Fatal(err)
		}
		list, _ := dataplane.Connections(context.Background(), d, dataplane.ConnectionQuery{})
		if len(list) > 10 {
			t.Fatalf("flows = %d, want at most 10", len(list))
		}
	}
	if got, want := d.Counters()[0].Connections, uint64(31); got != want {
		t.Errorf("total flows = %d, want %d because the busy flow must not be replaced", got, want)
	}
	d.apply(with(f, func(f *balancer.Frontend) { f.IdleTimeout = 100 * time.Millisecond }))
	eventually(t, "the end of idle flows", func() error {
		if list, _ := dataplane.Connections(context.Background(), d, dataplane.ConnectionQuery{}); len(list) > 0 {
			return fmt.Errorf("flows = %d, want 0", len(list))
		}
		return nil
	})
}

// TestIdleFlowsAreNotLive pauses a flow, and then sends another datagram. The flow must count as
// idle only during the pause.
func TestIdleFlowsAreNotLive(t *testing.T) {
	d := start(t, Options{})
	f := frontendAt("127.77.2.7:9000/udp", udpServer(t, "127.0.0.1:0", "a"))
	d.apply(f)
	c := udpClient(t, f.AddrPort())
	for _, idle := range []bool{false, true, false} {
		if !idle {
			if _, err := askUDP(c, "x"); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range d.list() {
			f.mu.Lock()
			f.flows.each(func(x *flow) {
				if idle {
					x.last.Add(-int64(dataplane.IdleAfter))
				}
			})
			f.mu.Unlock()
		}
		list, _ := dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{})
		active := d.Counters()[0].Backends[0].Active
		if len(list) != 1 || (list[0].State == dataplane.Idle) != idle || (active == 0) != idle {
			t.Errorf("live flows = %d, connections = %+v; want one connection, idle = %v", active, list, idle)
		}
	}
}
