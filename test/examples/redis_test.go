package examples

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"vipd/test/wait"
)

// serveRedis starts a server that answers the commands in the example's check. The server is the
// primary if primary contains its address. ECHO returns the address.
func serveRedis(t *testing.T, address string, primary *atomic.Value) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerRedis(conn, address, primary)
		}
	}()
	return listener
}

func answerRedis(conn net.Conn, address string, primary *atomic.Value) {
	defer func() { _ = conn.Close() }()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		answer := "-ERR unknown command"
		switch strings.TrimSpace(lines.Text()) {
		case "AUTH secret":
			answer = "+OK"
		case "PING":
			answer = "+PONG"
		case "ECHO":
			answer = "+" + address
		case "INFO replication":
			answer = "role:slave"
			if primary.Load() == address {
				answer = "role:master"
			}
		}
		if _, err := io.WriteString(conn, answer+"\r\n"); err != nil {
			return
		}
	}
}

// redis changes the primary while the example runs. New connections must reach the new primary,
// open connections to the old primary must be closed, and check-now must show all checks and their
// steps. Then an agent drains the primary, and its Sentinel fails. vipctl describe must show both.
func redis(t *testing.T, e example) {
	const first, second = "127.10.8.11:6379", "127.10.8.12:6379"
	var primary atomic.Value
	primary.Store(first)
	serveRedis(t, first, &primary)
	serveRedis(t, second, &primary)
	sentinel := serveRedis(t, "127.10.8.11:26379", &primary)
	serveRedis(t, "127.10.8.12:26379", &primary)
	var answer atomic.Value
	answer.Store("up\n")
	serveAgent(t, "127.10.8.11:9707", &answer)
	var ready atomic.Value
	ready.Store("ready\n")
	serveAgent(t, "127.10.8.12:9707", &ready)
	e.Daemon(t, e.name)
	connect := func(want string) (open net.Conn) {
		wait.For(t, wait.Patience, "a connection to "+want, func() bool {
			conn, err := net.Dial("tcp", "127.10.8.1:6379")
			if err != nil {
				return false
			}
			_, _ = fmt.Fprint(conn, "ECHO\r\n")
			if answer, _ := bufio.NewReader(conn).ReadString('\n'); answer == "+"+want+"\r\n" {
				open = conn
				return true
			}
			_ = conn.Close()
			return false
		})
		t.Cleanup(func() { _ = open.Close() })
		return open
	}
	before := connect(first)
	primary.Store(second)
	connect(second)
	if _, err := io.ReadAll(before); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("connection to the old primary: error = %v, want EOF or a reset", err)
	}
	primary.Store(first)
	out, err := e.Shell(t, "bin/vipctl --socket build/redis/run/vipd.sock check-now redis 127.10.8.12", wait.Patience)
	for _, want := range []string{
		`failed: check 1 of 2: step 3 of 3: answered "\r\nrole:slave\r\n", without the expected "role:master"`,
		"* check 2 of 2: tcp check of 127.10.8.12:26379",
	} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("vipctl check-now = %q, %v, want a failure with %q", out, err, want)
		}
	}
	connect(first)
	answer.Store("drain #update\n")
	described(t, e, "its agent: drain #update")
	answer.Store("ready\n")
	connect(first)
	_ = sentinel.Close()
	described(t, e, "check 2 of 2 (tcp): connection refused", "an endpoint is up if it passes all of them")
	serveRedis(t, "127.10.8.11:26379", &primary) // the example must end without problems
}

func described(t *testing.T, e example, texts ...string) {
	t.Helper()
	wait.For(t, wait.Patience, strings.Join(texts, " and "), func() bool {
		out, _ := e.Shell(t, "bin/vipctl --socket build/redis/run/vipd.sock describe redis", wait.Patience)
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(out, text) })
	})
}

// serveAgent answers each connection with the current value of line.
func serveAgent(t *testing.T, address string, line *atomic.Value) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, line.Load().(string))
			_ = conn.Close()
		}
	}()
}
