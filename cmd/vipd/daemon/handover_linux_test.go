package daemon_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon"
	"vipd/test/wait"
)

// echoes starts a server that echoes lines until the test ends.
func echoes(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				for in := bufio.NewScanner(c); in.Scan(); {
					fmt.Fprintln(c, in.Text())
				}
			}()
		}
	}()
}

func proxying(t *testing.T) (n *node, c net.Conn, answers *bufio.Reader) {
	t.Helper()
	echoes(t, "127.40.1.1:9001")
	n = startNode(t, `
[services.web]
vips = ["127.40.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.40.1.1", port = 9001 }]
`)
	c, err := net.DialTimeout("tcp", "127.40.0.1:8080", wait.Patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	answers = bufio.NewReader(c)
	fmt.Fprintln(c, "begin")
	if _, err := answers.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return n, c, answers
}

// TestReplace starts a second vipd with --replace. It must replace the running vipd, whose
// connections must continue. A second vipd without --replace must be refused.
func TestReplace(t *testing.T) {
	n, c, in := proxying(t)
	ask := func(when string) {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(wait.Patience))
		fmt.Fprintln(c, when)
		if got, err := in.ReadString('\n'); got != when+"\n" || err != nil {
			t.Errorf("%s: answer = %q, error = %v, want the line that was sent", when, got, err)
		}
	}
	ask("before")
	for i := range 2 {
		first := n.stop
		n.replace = true
		n.start() // the first vipd stops at the same time
		ask(fmt.Sprintf("after %d", i))
		first()
	}
	if _, err := n.make(false); err == nil {
		t.Error("second vipd without --replace: error = none, want a refusal")
	}
	ask("beside one that was refused")
}

// TestTwoReplace starts two vipds with --replace at the same time. One of them must serve the open
// connection.
func TestTwoReplace(t *testing.T) {
	n, c, answers := proxying(t)
	made := make(chan *daemon.Daemon, 2)
	for range 2 {
		go func() {
			next, err := n.make(true)
			t.Log(err) // one of the two vipds may fail
			made <- next
		}()
	}
	for range 2 {
		if next := <-made; next != nil {
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- next.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
	}
	_ = c.SetDeadline(time.Now().Add(wait.Bound(0)))
	fmt.Fprintln(c, "after")
	if got, err := answers.ReadString('\n'); err != nil {
		t.Errorf("reply on the open connection = %q, error = %v, want the line that was sent", got, err)
	}
	_ = c.Close()
}

// TestReplaceWhileStopping starts vipd with --replace while another vipd is stopping. The new vipd
// must wait until the other vipd has exited, and then start.
func TestReplaceWhileStopping(t *testing.T) {
	n, c, _ := proxying(t)
	stopped := make(chan struct{})
	go func() { defer close(stopped); n.stop() }()
	wait.For(t, 0, "new connections to be refused while the open connection drains", func() bool {
		more, err := net.Dial("tcp", "127.40.0.1:8080")
		if err == nil {
			_ = more.Close()
		}
		return err != nil
	})
	var next *daemon.Daemon
	made := make(chan error, 1)
	go func() {
		var err error
		next, err = n.make(true)
		made <- err
	}()
	socket := filepath.Join(n.dir, "run", api.HandoverSocket)
	wait.For(t, 0, "the second vipd to ask the first", func() bool {
		sockets, err := os.ReadFile("/proc/net/unix")
		return err == nil && strings.Count(string(sockets), socket) == 2
	})
	_ = c.Close()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	<-stopped
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := next.Run(ctx); err != nil {
		t.Error(err)
	}
}
