package userspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/wait"
)

// TestRetriesBeforeTheClientSeesAnything connects clients while one of two backends is down. All
// clients must be served, and the failed backend must rest.
func TestRetriesBeforeTheClientSeesAnything(t *testing.T) {
	good, dead := serveAt(t, "127.0.0.1:0", named("good")), serveAt(t, "127.0.0.1:0", named("dead"))
	dead.stop()
	d := start(t, Options{})
	f := frontendAt("127.77.0.2:9000", good.addr, dead.addr)
	d.apply(f)
	began := time.Now()
	for range 20 {
		if name, err := askOnce(f.AddrPort(), ""); err != nil || name != "good" {
			t.Fatalf("server = %q, %v; want good", name, err)
		}
	}
	most := max(10, 1+int(time.Since(began)/Rest))
	if got := d.DialRetries(); got < 1 || int(got) > most {
		t.Errorf("retries = %d, want 1 to %d because a dead backend rests", got, most)
	}
}

// TestBackupServesWhenTheOthersRefuse stops the primary backend. The backup must then serve all
// clients. Before that, the backup must get no connections, even if the primary has reached its
// connection limit.
func TestBackupServesWhenTheOthersRefuse(t *testing.T) {
	primary, backup := serveAt(t, "127.0.0.1:0", named("primary")), serveAt(t, "127.0.0.1:0", named("backup"))
	d := start(t, Options{})
	f := with(frontendAt("127.77.0.9:9000", primary.addr, backup.addr), func(f *balancer.Frontend) {
		for i := range f.Backends {
			if f.Backends[i].Addr == backup.addr {
				f.Backends[i].State, f.Backends[i].Weight = balancer.Standby, 0
			} else {
				f.Backends[i].MaxConnections = 1
			}
		}
	})
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	if got := c.mustAsk(t); got != "primary" {
		t.Fatalf("server = %q, want primary", got)
	}
	if name, err := askOnce(f.AddrPort(), ""); err == nil {
		t.Errorf("client of the full primary: server = %q, want a reset", name)
	}
	_ = c.Close()
	eventually(t, "the end of the one connection that fills the primary", func() error {
		for _, b := range d.Counters()[0].Backends {
			if b.Active > 0 {
				return fmt.Errorf("connections of %s = %d, want 0", b.Backend, b.Active)
			}
		}
		return nil
	})
	primary.stop()
	for range 20 {
		if name, err := askOnce(f.AddrPort(), ""); err != nil || name != "backup" {
			t.Fatalf("server = %q, %v; want backup", name, err)
		}
	}
	serveAt(t, primary.addr.String(), named("primary"))
	eventually(t, "the primary to serve again", func() error {
		name, err := askOnce(f.AddrPort(), "")
		if err == nil && name != "primary" {
			err = errors.New("got " + name)
		}
		return err
	})
}

// TestEachDrainsForItsOwnTime closes a dataplane whose services have different drain timeouts. Each
// service's connections must be reset after its own timeout, even if another service's timeout is
// longer.
func TestEachDrainsForItsOwnTime(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("s"))
	d, err := New(Options{Intercept: Bind, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	short := with(frontendAt("127.77.0.10:9000", s.addr), func(f *balancer.Frontend) { f.DrainTimeout = 200 * time.Millisecond })
	long := with(frontendAt("127.77.0.10:9001", s.addr), func(f *balancer.Frontend) { f.DrainTimeout = time.Hour })
	if err := d.Apply(t.Context(), []dataplane.Change{{Key: short.Key, New: short}, {Key: long.Key, New: long}}); err != nil {
		t.Fatal(err)
	}
	a, b := mustConnect(t, short.AddrPort()), mustConnect(t, long.AddrPort())
	a.mustAsk(t)
	b.mustAsk(t)
	closed := make(chan error)
	go func() { closed <- d.Close(context.Background(), false) }()
	wantReset(t, a)
	b.mustAsk(t)
	_ = b.Close()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestResetsWhenNoBackendAnswers connects clients while all backends refuse connections. Each
// client must be reset.
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

// TestFinalBytesArriveBeforeReset makes one side send its last data and close while the other side
// is still writing, like a server that refuses an upload. The last data must arrive before the
// reset.
func TestFinalBytesArriveBeforeReset(t *testing.T) {
	const words = "413 too large"
	say := func(c net.Conn) { // sends data, and closes without reading everything
		_, _ = io.ReadFull(c, make([]byte, 1000))
		_, _ = io.WriteString(c, words)
	}
	hear := func(c net.Conn) string {
		for block, err := make([]byte, 64<<10), error(nil); err == nil; {
			_, err = c.Write(block)
		}
		got, _ := io.ReadAll(c)
		return string(got)
	}
	heard := make(chan string, 1)
	refuses, asks := serveAt(t, "127.0.0.1:0", say), serveAt(t, "127.0.0.1:0", func(c net.Conn) { heard <- hear(c) })
	d := start(t, Options{})
	upload, download := frontendAt("127.77.0.7:9001", refuses.addr), frontendAt("127.77.0.7:9002", asks.addr)
	d.apply(upload, download)
	for range 10 {
		c := mustConnect(t, upload.AddrPort())
		if got := hear(c); got != words {
			t.Fatalf("data at the client after a refused upload = %q, want %q", got, words)
		}
		_ = c.Close()
		c = mustConnect(t, download.AddrPort())
		say(c)
		_ = c.Close()
		if got := <-heard; got != words {
			t.Fatalf("data at the backend after a closed download = %q, want %q", got, words)
		}
	}
}

// TestClientResetReachesTheBackend resets a client's connection. The connection to the backend must
// also be reset.
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
			return fmt.Errorf("the client's connection is not listed")
		}
		return nil
	})
	reset(c.TCPConn)
	select {
	case err := <-got:
		if !isReset(err) {
			t.Errorf("backend: error = %v, want a reset", err)
		}
	case <-time.After(wait.Patience):
		t.Error("the connection to the backend was not reset")
	}
}
