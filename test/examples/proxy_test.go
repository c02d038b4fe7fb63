package examples

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"vipd/test/wait"
)

// proxy sends PROXY headers, as another load balancer would. The servers must receive the client
// addresses in the headers. They must not receive connections that lack a header or come from an
// untrusted network.
func proxy(t *testing.T, e example) {
	seen := make(chan string, 100)
	for i, name := range []string{"a", "b"} {
		serveHeaders(t, name, fmt.Sprintf("127.10.9.%d:8080", 11+i), seen)
	}
	serveHeaderOfDatagram(t, "127.10.9.11:5140")
	e.Daemon(t, e.name)
	e.sayUntil(t, "curl --haproxy-protocol", "a", "b")
	wait.For(t, wait.Patience, "an answer with the client's own address", func() bool {
		return strings.HasPrefix(e.say(t, "echo hello | nc -u"), "127.0.0.1 hello")
	})
	const v1, v2 = "PROXY TCP4 203.0.113.7 127.10.9.1 4711 8080\r\n",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x07\x7f\x0a\x09\x01\x12\x67\x1f\x90"
	for _, header := range []string{v1, v2} {
		answer, err := askWith(t, "127.0.0.1", header)
		if err != nil || !strings.HasSuffix(answer, " 203.0.113.7:4711") {
			t.Errorf("after the header %q: answer = %q, error %v, want the client 203.0.113.7:4711", header, answer, err)
		}
	}
	for len(seen) > 0 {
		<-seen
	}
	for name, c := range map[string]struct{ from, header string }{
		"no header":        {"127.0.0.1", ""},
		"malformed header": {"127.0.0.1", strings.Replace(v1, "TCP4", "TCP5", 1)},
		"another network":  {"127.0.0.2", v1},
	} {
		if answer, err := askWith(t, c.from, c.header); err == nil {
			t.Errorf("connection with %s: answer = %q, want none", name, answer)
		}
	}
	if len(seen) > 0 {
		t.Errorf("a refused connection from %s reached a server", <-seen)
	}
	if out := e.say(t, "bin/vipctl"); !strings.Contains(out, "127.10.9.12") {
		t.Errorf("vipctl describe = %q, want both endpoints in it", out)
	}
}

// askWith sends a PROXY header and a request from an address, and returns the body of the answer.
func askWith(t *testing.T, from, header string) (string, error) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 2 * time.Second}
	c, err := dialer.Dial("tcp", "127.10.9.1:8080")
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(wait.Patience))
	if _, err := io.WriteString(c, header+"GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(body)), err
}

// serveHeaders answers each HTTP request with the server's name, and the client that the
// connection's PROXY header names. It also sends the client to seen.
func serveHeaders(t *testing.T, name, address string, seen chan<- string) {
	t.Helper()
	raw, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	listener := &proxyproto.Listener{Listener: raw, ConnPolicy: func(proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
		return proxyproto.REQUIRE, nil
	}}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.RemoteAddr
		fmt.Fprintf(w, "%s %s\n", name, r.RemoteAddr)
	})}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}()
	t.Cleanup(func() { _ = server.Close() })
}

// serveHeaderOfDatagram answers each datagram with the client address in its PROXY header, followed
// by the datagram's payload.
func serveHeaderOfDatagram(t *testing.T, address string) {
	t.Helper()
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = packets.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			in := bufio.NewReader(bytes.NewReader(buffer[:n]))
			client := "no header:"
			if h, err := proxyproto.Read(in); err == nil {
				client = h.SourceAddr.(*net.UDPAddr).IP.String()
			}
			rest, _ := io.ReadAll(in)
			_, _ = packets.WriteTo(append([]byte(client+" "), rest...), from)
		}
	}()
}
