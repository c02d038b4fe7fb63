package probe_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/test/wait"
)

// healthServer is a gRPC health service. A function determines its answers.
type healthServer struct {
	grpc_health_v1.UnimplementedHealthServer
	answer func(context.Context) (grpc_health_v1.HealthCheckResponse_ServingStatus, error)
}

func (s *healthServer) Check(ctx context.Context, q *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if q.Service == "gone" {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	st, err := s.answer(ctx)
	return &grpc_health_v1.HealthCheckResponse{Status: st}, err
}

// serveGRPC runs a gRPC server on loopback. register adds services to the server.
func serveGRPC(t *testing.T, register func(*grpc.Server), o ...grpc.ServerOption) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(o...)
	register(s)
	ended := make(chan struct{})
	go func() { _ = s.Serve(ln); close(ended) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// servePages runs a web server that has no pages. Like a gRPC server, it speaks HTTP/2 without TLS.
func servePages(t *testing.T) netip.AddrPort {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.Protocols = &http.Protocols{}
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).AddrPort()
}

func TestGRPC(t *testing.T) {
	quiet(t)
	serving := func(st grpc_health_v1.HealthCheckResponse_ServingStatus, err error) func(*grpc.Server) {
		return func(s *grpc.Server) {
			grpc_health_v1.RegisterHealthServer(s, &healthServer{answer: func(context.Context) (grpc_health_v1.HealthCheckResponse_ServingStatus, error) {
				return st, err
			}})
		}
	}
	slow := func(s *grpc.Server) {
		grpc_health_v1.RegisterHealthServer(s, &healthServer{answer: func(ctx context.Context) (grpc_health_v1.HealthCheckResponse_ServingStatus, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}})
	}
	ca := newAuthority(t)
	secured := grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{ca.issue("api.example", -time.Hour, time.Hour)}}))
	overdue := grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{ca.issue("api.example", -2*time.Hour, -time.Hour)}}))
	named := func(h *balancer.Health) { h.Host, h.CAFile = "api.example", ca.file("ca.pem") }
	up := grpc_health_v1.HealthCheckResponse_SERVING
	for _, c := range []struct {
		name   string
		at     netip.AddrPort
		change func(*balancer.Health)
		want   health.Outcome
		text   string
	}{
		{"serving", serveGRPC(t, serving(up, nil)), nil, health.Passed, "answered SERVING"},
		{"known service", serveGRPC(t, serving(up, nil)), func(h *balancer.Health) { h.Query = "shop.Cart" }, health.Passed, "answered SERVING"},
		{"unknown service", serveGRPC(t, serving(up, nil)), func(h *balancer.Health) { h.Query = "gone" }, health.Failed, `does not know the service "gone"`},
		{"not serving", serveGRPC(t, serving(grpc_health_v1.HealthCheckResponse_NOT_SERVING, nil)), nil, health.Failed, "answered NOT_SERVING"},
		{"error", serveGRPC(t, serving(0, status.Error(codes.Internal, "disk full"))), nil, health.Failed, "answered Internal: disk full"},
		{"no health service", serveGRPC(t, func(*grpc.Server) {}), nil, health.Failed, "speaks gRPC, but has no grpc.health.v1 service"},
		{"slow", serveGRPC(t, slow), nil, health.Failed, "no answer to the call within 300ms"},
		{"half-open", serve(t, stuck), nil, health.Failed, "connected, but no data arrived within 300ms"},
		{"hangs up", serve(t, func(net.Conn) {}), nil, health.Failed, "closed the connection without sending data"},
		{"not gRPC", serve(t, answerWith("220 mail ready, say something\r\n")), nil, health.Failed, `does not speak gRPC: answered "220 mail ready, say something"`},
		{"HTTP/1", serve(t, answerWith("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")), nil, health.Failed, `does not speak gRPC: answered "HTTP/1.1 400 Bad Request"`},
		{"HTTP/1 without a close", serve(t, func(c net.Conn) { answerWith("HTTP/1.1 400 Bad Request\r\n\r\n")(c); stuck(c) }), nil, health.Failed, `does not speak gRPC: answered "HTTP/1.1 400 Bad Request"`},
		{"web server with HTTP/2", servePages(t), nil, health.Failed, "does not speak gRPC: answered HTTP status 404 (Not Found)"},
		{"closed after the settings", serve(t, func(c net.Conn) { answerWith("\x00\x00\x00\x04\x00\x00\x00\x00\x00")(c) }), nil, health.Failed, "closed the connection without an answer to the call"},
		{"refused", closedPort(t), nil, health.Failed, "connection refused"},
		{"TLS", serveGRPC(t, serving(up, nil), secured), named, health.Passed, "answered SERVING"},
		{"TLS, not verified", serveGRPC(t, serving(up, nil), secured), func(h *balancer.Health) { h.Verify = false }, health.Passed, "answered SERVING"},
		{"expired", serveGRPC(t, serving(up, nil), overdue), named, health.Failed, "certificate expired on 20"},
		{"wrong name", serveGRPC(t, serving(up, nil), secured), func(h *balancer.Health) { named(h); h.Host = "x.example" }, health.Failed, "certificate is for api.example, not for x.example"},
		{"plain text to a TLS port", serveGRPC(t, serving(up, nil), secured), nil, health.Failed, "closed the connection without sending data"},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, define(balancer.GRPCHealth, c.change), c.at, c.want, c.text) })
	}
}

// resolver returns a DNS server's answer to a query. The server has records for ok.example. Over
// UDP, its answer for big.example is truncated.
func resolver(query []byte, overUDP bool) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	m.Response = true
	name := strings.ToLower(q.Name.String())
	header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}
	add := func(b dnsmessage.ResourceBody) {
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: b})
	}
	switch {
	case name == "silent.example.":
		return nil
	case name == "junk.example.":
		return []byte("junk")
	case name == "broken.example.":
		m.RCode = dnsmessage.RCodeServerFailure
	case name == "big.example." && overUDP:
		m.Truncated = true
	case name != "ok.example." && name != "big.example.":
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		add(&dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}})
		add(&dnsmessage.AResource{A: [4]byte{192, 0, 2, 2}})
	case q.Type == dnsmessage.TypeAAAA:
		add(&dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("2001:db8::1").As16()})
	case q.Type == dnsmessage.TypeTXT:
		add(&dnsmessage.TXTResource{TXT: []string{"v=1"}})
	case q.Type == dnsmessage.TypeMX:
		add(&dnsmessage.MXResource{Pref: 10, MX: dnsmessage.MustNewName("mail.example.")})
	case q.Type == dnsmessage.TypeSRV:
		add(&dnsmessage.SRVResource{Priority: 1, Weight: 2, Port: 443, Target: dnsmessage.MustNewName("a.example.")})
	case q.Type == dnsmessage.TypeSOA:
		add(&dnsmessage.SOAResource{NS: dnsmessage.MustNewName("ns.example."), MBox: dnsmessage.MustNewName("root.example."), Serial: 7})
	case q.Type == dnsmessage.TypeCNAME:
		add(&dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("other.example.")})
	}
	if len(m.Answers) == 0 { // a zone without such records answers with its SOA record
		mailbox := dnsmessage.MustNewName("first_last.example.")
		m.Authorities = append(m.Authorities, dnsmessage.Resource{Header: header, Body: &dnsmessage.SOAResource{NS: dnsmessage.MustNewName("ns.example."), MBox: mailbox}})
	}
	packed, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return bytes.Replace(packed, []byte("first_last"), []byte("first.last"), 1) // puts a dot into the first label of the mailbox name (RFC 1035, section 8)
}

// resolveOverTCP reads a single query from a connection, and sends resolver's answer.
func resolveOverTCP(c net.Conn) {
	size := make([]byte, 2)
	if _, err := io.ReadFull(c, size); err != nil {
		return
	}
	query := make([]byte, binary.BigEndian.Uint16(size))
	_, _ = io.ReadFull(c, query)
	answer := resolver(query, false)
	_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
}

func serveDNS(t *testing.T) netip.AddrPort {
	t.Helper()
	for {
		at := serve(t, resolveOverTCP)
		pc, err := net.ListenPacket("udp", at.String())
		if err != nil {
			continue // the UDP port is in use, so try another port
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			buf := make([]byte, 512)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				answer := resolver(buf[:n], true)
				if answer == nil {
					continue
				}
				stale := append([]byte{answer[0] ^ 1}, answer[1:]...) // first send an answer with another query's ID
				_, _ = pc.WriteTo(stale, from)
				_, _ = pc.WriteTo(answer, from)
			}
		}()
		t.Cleanup(func() { _ = pc.Close(); <-ended })
		return at
	}
}

func TestDNS(t *testing.T) {
	quiet(t)
	at := serveDNS(t)
	for _, c := range []struct {
		query, expect string
		want          health.Outcome
		text          string
	}{
		{"ok.example", "", health.Passed, "answered 192.0.2.1, 192.0.2.2"},
		{"OK.example. a", "192.0.2.2", health.Passed, "answered 192.0.2.1, 192.0.2.2"},
		{"ok.example AAAA", "2001:db8::1", health.Passed, "answered 2001:db8::1"},
		{"ok.example TXT", "v=1", health.Passed, "answered v=1"},
		{"ok.example MX", "10 mail.example", health.Passed, "answered 10 mail.example."},
		{"ok.example SRV", "1 2 443 a.example.", health.Passed, "answered 1 2 443 a.example."},
		{"ok.example SOA", "", health.Passed, "answered ns.example. root.example. 7"},
		{"ok.example CNAME", "OTHER.example", health.Passed, "answered other.example."},
		{"ok.example NS", "", health.Passed, "answered with no records of this type"},
		{"ok.example", "192.0.2.9", health.Failed, `answered 192.0.2.1, 192.0.2.2, without the expected "192.0.2.9"`},
		{"ok.example NS", "ns.example", health.Failed, `answered with no records of this type, without the expected "ns.example"`},
		{"gone.example", "", health.Failed, "answered NXDOMAIN"},
		{"gone.example", "nxdomain", health.Passed, "answered NXDOMAIN"},
		{"broken.example", "", health.Failed, "answered SERVFAIL"},
		{"big.example", "", health.Passed, "answered with no records of this type"},
		{"big.example", "192.0.2.1", health.Passed, "answered 192.0.2.1, 192.0.2.2"},
		{"silent.example", "", health.Failed, "no answer within 300ms"},
		{"junk.example", "", health.Failed, "answered 4 bytes, which is not a DNS message"},
		{"ok.example HINFO", "", health.NotRun, "not run: query: "},
		{"a b c", "", health.NotRun, "not run: query: "},
	} {
		h := define(balancer.DNSHealth, func(h *balancer.Health) { h.Query, h.Expect = c.query, c.expect })
		for _, proto := range []balancer.Protocol{balancer.UDP, balancer.TCP} {
			if strings.HasPrefix(c.query, "silent") || strings.HasPrefix(c.query, "junk") || c.query == "big.example" && c.expect == "" {
				if proto == balancer.TCP {
					continue
				}
			}
			t.Run(fmt.Sprintf("%s %s over %s", c.query, c.expect, proto), func(t *testing.T) {
				checkOver(t, h, proto, at, c.want, c.text)
			})
		}
	}
	h := define(balancer.DNSHealth, func(h *balancer.Health) { h.Query = "ok.example" })
	for proto, want := range map[balancer.Protocol]string{balancer.UDP: "port unreachable: ", balancer.TCP: "connection refused"} {
		checkOver(t, h, proto, closedPort(t), health.Failed, want)
	}
}

// TestExchangeTranscript reads the transcripts that check-now prints. A transcript must hide
// secrets and shorten long answers.
func TestExchangeTranscript(t *testing.T) {
	quiet(t)
	at := serve(t, answerWith("HTTP/1.1 200 OK\r\nSet-Echo: hunter2hunter2\r\nContent-Length: 5\r\n\r\nready"))
	h := define(balancer.HTTPHealth, func(h *balancer.Health) {
		h.Timeout = wait.Patience // longer than any check in this test
		h.Headers = map[string]string{"Authorization": "hunter2hunter2", "X-Plain": "shown"}
	})
	if r, _ := newProbe(h, balancer.TCP).Exchange(t.Context(), serve(t, answerWith("bad hunter2hunter2"))); !strings.Contains(r.Text, `answered "bad (hidden)", which is not HTTP`) {
		t.Errorf("result = %q, want no value of a secret header", r.Text)
	}
	_, text := newProbe(h, balancer.TCP).Exchange(t.Context(), at)
	for _, want := range []string{
		"* connected to " + at.String() + " from 127.0.0.1:", "> GET / HTTP/1.1\n", "> Authorization: (hidden)\n", "> X-Plain: shown\n",
		"< HTTP/1.1 200 OK\n", "< Set-Echo: (hidden)\n", "< ready\n", "\n* passed after ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("transcript does not contain %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "hunter2") {
		t.Errorf("transcript =\n%s\nwant no secret", text)
	}

	for name, answer := range map[string]func(net.Conn){
		"in a binary answer": answerWith("HTTP/1.1 200 OK\r\n\r\n\x00\x01hunter2hunter2\xff"),
		"split at the limit": endless("HTTP/1.1 200 OK\r\n\r\n"+strings.Repeat("x", 8<<10-19-5)+"hunter2hunter2", "more "),
	} {
		if _, text = newProbe(h, balancer.TCP).Exchange(t.Context(), serve(t, answer)); strings.Contains(text, "hunte") || !strings.Contains(text, "(hidden)") {
			t.Errorf("transcript %s =\n%s\nwant no secret", name, text)
		}
	}

	_, text = newProbe(define(balancer.HTTPHealth, func(h *balancer.Health) { h.Timeout = wait.Patience }), balancer.TCP).Exchange(t.Context(), serve(t, endless("HTTP/1.1 200 OK\r\n\r\n", "more ")))
	if len(text) > 20<<10 || !strings.Contains(text, "bytes received are shown") {
		t.Errorf("transcript size = %d, want at most 20 KiB and a note about omitted bytes:\n%s", len(text), text[:500])
	}

	_, text = newProbe(define(balancer.UDPHealth, func(h *balancer.Health) { h.Send, h.Timeout = "\x00\x01", wait.Patience }), balancer.UDP).Exchange(t.Context(), closedPort(t))
	if !strings.Contains(text, "> (2 bytes)\n") || !strings.Contains(text, "\n* failed after ") {
		t.Errorf("transcript = %s, want the size of the sent data and the failure", text)
	}

	ca := newAuthority(t)
	secure := serve(t, overTLS(&tls.Config{Certificates: []tls.Certificate{ca.issue("shop.example", -time.Hour, time.Hour)}}, answerWith(ok)))
	named := func(h *balancer.Health) {
		h.Host, h.CAFile, h.Timeout = "shop.example", ca.file("ca.pem"), wait.Bound(0)
	}
	_, text = newProbe(define(balancer.HTTPSHealth, named), balancer.TCP).Exchange(t.Context(), secure)
	if !strings.Contains(text, "* TLS 1.3, TLS_") || !strings.Contains(text, "for shop.example, valid from ") || !strings.Contains(text, "< ready\n") {
		t.Errorf("transcript = %s, want the TLS version, the certificate and the answer", text)
	}
	overdue := serve(t, overTLS(&tls.Config{Certificates: []tls.Certificate{ca.issue("shop.example", -2*time.Hour, -time.Hour)}}, answerWith(ok)))
	for _, c := range []struct {
		at     netip.AddrPort
		change func(*balancer.Health)
		want   string
	}{
		{overdue, named, "certificate expired on "},
		{secure, func(h *balancer.Health) { named(h); h.Host = "other.example" }, "certificate is for shop.example, not for other.example"},
		{secure, func(h *balancer.Health) { named(h); h.CAFile = "" }, "certificate is from an authority that is not trusted here"},
	} {
		got, text := newProbe(define(balancer.HTTPSHealth, c.change), balancer.TCP).Exchange(t.Context(), c.at)
		if !strings.HasPrefix(got.Text, c.want) || !strings.Contains(text, "* TLS 1.3, TLS_") || !strings.Contains(text, "; certificate of CN=shop.example for shop.example, valid from ") {
			t.Errorf("result = %s, want %s; transcript =\n%s\nwant the TLS version and the certificate", got.Text, c.want, text)
		}
	}
}

// TestExchangeOmitsResult reads the transcripts of checks that can't connect. Users see the result
// next to the transcript, so the transcript must not repeat it.
func TestExchangeOmitsResult(t *testing.T) {
	quiet(t)
	for name, c := range map[string]struct {
		health *balancer.Health
		want   string
	}{
		"could not run": {
			define(balancer.HTTPHealth, func(h *balancer.Health) {
				h.Source, h.Timeout = netip.MustParseAddr("192.0.2.77"), wait.Bound(0)
			}),
			"* could not connect to AT\n* given up after TIME\n",
		},
		"refused": {define(balancer.HTTPHealth, func(h *balancer.Health) { h.Timeout = wait.Bound(0) }), "* could not connect to AT\n* failed after TIME\n"},
	} {
		at := closedPort(t)
		got, text := newProbe(c.health, balancer.TCP).Exchange(t.Context(), at)
		text = regexp.MustCompile("after .*").ReplaceAllString(strings.ReplaceAll(text, at.String(), "AT"), "after TIME")
		if text != c.want || got.Text == "" {
			t.Errorf("%s: result = %q, transcript =\n%s, want\n%s", name, got.Text, text, c.want)
		}
	}
}
