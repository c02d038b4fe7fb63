package userspace

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"vipd/balancer"
)

func TestSpreadsExactly(t *testing.T) {
	for _, vip := range []string{"127.77.0.1:9000", "[::1]:9000"} {
		t.Run(vip, func(t *testing.T) {
			host := "127.0.0.1:0"
			if vip[0] == '[' {
				host = "[::1]:0"
			}
			a, b := serveAt(t, host, named("a")), serveAt(t, host, named("b"))
			d := start(t, Options{})
			f := frontendAt(vip, a.addr, b.addr)
			for i := range f.Backends {
				if f.Backends[i].Addr == a.addr {
					f.Backends[i].Weight = 3
				}
			}
			d.apply(f)
			got := map[string]int{}
			for range 40 {
				name, err := askOnce(f.AddrPort(), "")
				if err != nil {
					t.Fatal(err)
				}
				got[name]++
			}
			if got["a"] != 30 || got["b"] != 10 {
				t.Errorf("got %v, want a 30 and b 10", got)
			}
		})
	}
}

func TestRetriesBeforeTheClientSeesAnything(t *testing.T) {
	good, dead := serveAt(t, "127.0.0.1:0", named("good")), serveAt(t, "127.0.0.1:0", named("dead"))
	dead.stop()
	d := start(t, Options{})
	f := frontendAt("127.77.0.2:9000", good.addr, dead.addr)
	d.apply(f)
	for range 20 {
		if name, err := askOnce(f.AddrPort(), ""); err != nil || name != "good" {
			t.Fatalf("got %q, %v; want good", name, err)
		}
	}
	if got := d.DialRetries(); got < 1 || got > 10 {
		t.Errorf("got %d retries: want at least one, and few, because a dead backend rests", got)
	}
}

func TestResetsWhenNoBackendAnswers(t *testing.T) {
	dead := serveAt(t, "127.0.0.1:0", named("dead"))
	dead.stop()
	d := start(t, Options{})
	f := frontendAt("127.77.0.3:9000", dead.addr)
	d.apply(f)
	for range 3 {
		c, err := connect(f.AddrPort(), "")
		if err == nil {
			wantReset(t, c)
			c.Close()
		} else if !isReset(err) {
			t.Error(err)
		}
	}
}

func TestNoActiveBackendRefuses(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d := start(t, Options{})
	f := frontendAt("127.77.0.4:9000", s.addr)
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	c.mustAsk(t)
	down := with(f, func(f *balancer.Frontend) { f.Backends[0].State, f.Backends[0].Weight = balancer.Draining, 0 })
	d.apply(down)
	if _, err := connect(f.AddrPort(), ""); err == nil {
		t.Error("connected though no backend is active")
	}
	c.mustAsk(t)
	d.apply(f)
	if _, err := askOnce(f.AddrPort(), ""); err != nil {
		t.Errorf("with the backend back: %v", err)
	}
	c.mustAsk(t)
}

func TestHalfCloseAndReset(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", func(c net.Conn) { // answers what it read, only once that has ended
		all, err := io.ReadAll(c)
		if err != nil {
			return
		}
		if string(all) == "reset" {
			reset(c.(*net.TCPConn))
			return
		}
		fmt.Fprintf(c, "%d", len(all))
	})
	d := start(t, Options{})
	f := frontendAt("127.77.0.5:9000", s.addr)
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	io.WriteString(c, "12345")
	c.CloseWrite()
	if all, err := io.ReadAll(c); err != nil || string(all) != "5" {
		t.Errorf("after the half-close got %q, %v; want 5", all, err)
	}
	c = mustConnect(t, f.AddrPort())
	io.WriteString(c, "reset")
	c.CloseWrite()
	wantReset(t, c)
}

func TestClientResetReachesTheBackend(t *testing.T) {
	got := make(chan error, 1)
	s := serveAt(t, "127.0.0.1:0", func(c net.Conn) {
		_, err := io.Copy(io.Discard, c)
		got <- err
	})
	d := start(t, Options{})
	f := frontendAt("127.77.0.6:9000", s.addr)
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	io.WriteString(c, "x")
	eventually(t, "the connection at the backend", func() error {
		if s.accepted.Load() == 0 {
			return fmt.Errorf("not there")
		}
		return nil
	})
	reset(c.TCPConn)
	select {
	case err := <-got:
		if !isReset(err) {
			t.Errorf("the backend saw %v, want a reset", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the backend saw nothing")
	}
}
