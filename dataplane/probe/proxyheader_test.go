package probe_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/dataplane/probe"
	"vipd/test/wait"
)

type afterHeader struct {
	net.Conn
	rest io.Reader
}

func (c afterHeader) Read(p []byte) (int, error) { return c.rest.Read(p) }

// behindProxy returns a handler that accepts only connections whose PROXY header has this version
// and names no client. It passes these connections to handle, and closes all others.
func behindProxy(version balancer.ProxyProtocol, handle func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		h, err := proxyproto.Read(r)
		if err != nil || !h.Command.IsLocal() || version != []balancer.ProxyProtocol{"", "v1", "v2"}[h.Version] {
			return
		}
		handle(afterHeader{c, r})
	}
}

// TestProxyHeader checks servers that require a PROXY header that names no client. Each kind of TCP
// check must pass with this header, and fail without it.
func TestProxyHeader(t *testing.T) {
	quiet(t)
	ca := newAuthority(t)
	secure := &tls.Config{Certificates: []tls.Certificate{ca.issue("web.example", -time.Hour, time.Hour)}}
	for _, c := range []struct {
		kind   balancer.HealthType
		handle func(net.Conn)
		change func(*balancer.Health)
	}{
		{balancer.TCPHealth, answerWith("PONG"), func(h *balancer.Health) { h.Send, h.Expect = "PING\r\n\r\n", "PONG" }},
		{balancer.HTTPHealth, answerWith(ok), nil},
		{balancer.HTTPSHealth, overTLS(secure, answerWith(ok)), func(h *balancer.Health) { h.Host, h.CAFile = "web.example", ca.file("ca.pem") }},
		{balancer.DNSHealth, resolveOverTCP, func(h *balancer.Health) { h.Query = "ok.example" }},
		{balancer.GRPCHealth, forward(t, serveGRPC(t, func(s *grpc.Server) {
			grpc_health_v1.RegisterHealthServer(s, &healthServer{answer: func(context.Context) (grpc_health_v1.HealthCheckResponse_ServingStatus, error) {
				return grpc_health_v1.HealthCheckResponse_SERVING, nil
			}})
		})), nil},
	} {
		for _, version := range []balancer.ProxyProtocol{balancer.ProxyProtocolV1, balancer.ProxyProtocolV2} {
			t.Run(string(c.kind)+", "+string(version), func(t *testing.T) {
				at := serve(t, behindProxy(version, c.handle))
				h := define(c.kind, c.change)
				h.Timeout = wait.Patience
				if got := patient(t, probe.New(health.Subject{Proto: balancer.TCP, Header: version, Health: h}), at); got.Outcome != health.Passed {
					t.Errorf("check with the header: result = %s %q, want passed", got.Outcome, got.Text)
				}
				if got := patient(t, newProbe(define(c.kind, c.change), balancer.TCP), at); got.Outcome != health.Failed {
					t.Errorf("check without the header: result = %s %q, want failed", got.Outcome, got.Text)
				}
			})
		}
	}
}

// TestProxyHeaderOverUDP checks a server that answers only datagrams with a version 2 PROXY header
// that names no client. The check must pass if its definition has this version, and fail otherwise.
func TestProxyHeaderOverUDP(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	go func() {
		buf := make([]byte, 1000)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			r := bufio.NewReader(bytes.NewReader(buf[:n]))
			if h, err := proxyproto.Read(r); err != nil || !h.Command.IsLocal() {
				continue
			}
			if rest, _ := io.ReadAll(r); string(rest) == "PING" {
				_, _ = server.WriteTo([]byte("PONG"), from)
			}
		}
	}()
	at := server.LocalAddr().(*net.UDPAddr).AddrPort()
	for version, want := range map[balancer.ProxyProtocol]health.Outcome{balancer.ProxyProtocolV2: health.Passed, balancer.ProxyProtocolV1: health.Failed, "": health.Failed} {
		h := define(balancer.UDPHealth, func(h *balancer.Health) { h.Send, h.Expect, h.Timeout = "PING", "PONG", time.Second })
		if want == health.Passed {
			h.Timeout = wait.Patience
		}
		if got := probe.New(health.Subject{Proto: balancer.UDP, Header: version, Health: h}).Check(t.Context(), at); got.Outcome != want {
			t.Errorf("header version %q: result = %s %q, want %s", version, got.Outcome, got.Text, want)
		}
	}
}

// forward returns a handler that forwards each connection to a server.
func forward(t *testing.T, to netip.AddrPort) func(net.Conn) {
	t.Helper()
	return func(c net.Conn) {
		server, err := net.Dial("tcp", to.String())
		if err != nil {
			return
		}
		defer func() { _ = server.Close() }()
		go func() { _, _ = io.Copy(server, c); _ = server.Close() }()
		_, _ = io.Copy(c, server)
	}
}
