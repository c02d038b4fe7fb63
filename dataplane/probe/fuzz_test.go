package probe

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/net/dns/dnsmessage"

	"vipd/balancer"
	"vipd/balancer/health"
)

// answer is a connection from which prepared bytes can be read. If most is not 0, each read returns
// at most that many bytes.
type answer struct {
	net.Conn
	*bytes.Reader
	most int
}

func (a answer) Read(p []byte) (int, error) {
	if a.most > 0 {
		p = p[:min(a.most, len(p))]
	}
	return a.Reader.Read(p)
}

func (a answer) Write(p []byte) (int, error) { return len(p), nil }

// legible checks that the text of a result or error has no control characters and is short enough
// for a line in a table.
func legible(t *testing.T, text string, err error) {
	t.Helper()
	if err != nil {
		text = err.Error()
	}
	if i := strings.IndexFunc(text, unicode.IsControl); i >= 0 || len(text) > 2000 {
		t.Errorf("result = %q, want at most 2000 bytes without control characters", text)
	}
}

func attemptOf(h balancer.Health) *attempt {
	h.Timeout, h.Status, h.Path, h.Method = time.Second, "200-399", "/healthz", http.MethodGet
	return &attempt{Probe: New(health.Subject{Health: &h, Proto: balancer.TCP}), at: netip.MustParseAddrPort("192.0.2.1:80")}
}

// FuzzHTTPAnswer answers an HTTP check with arbitrary bytes. The result must be legible.
func FuzzHTTPAnswer(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 \x1b[31mBusy\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.0 999999 x\n\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a := attemptOf(balancer.Health{Type: balancer.HTTPHealth, Expect: "ok"})
		req, err := a.request()
		if err != nil {
			t.Fatal(err)
		}
		text, err := a.response(answer{Reader: bytes.NewReader(data)}, req)
		legible(t, text, err)
	})
}

// FuzzDNSAnswer answers a DNS check with arbitrary bytes. The result must be legible.
func FuzzDNSAnswer(f *testing.F) {
	name := dnsmessage.MustNewName("example.org.")
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1, Response: true},
		Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET}},
		Answers: []dnsmessage.Resource{
			{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.TXTResource{TXT: []string{"a\x1b[31m\nb"}}},
			{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}},
		},
	}
	packed, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	f.Add(packed[:len(packed)-3])
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := unpack(data)
		if err != nil {
			return
		}
		for _, want := range []string{"", "192.0.2.1", "NXDOMAIN"} {
			text, err := attemptOf(balancer.Health{Type: balancer.DNSHealth, Expect: want}).judge(m)
			legible(t, text, err)
		}
	})
}

// FuzzSteps answers a multi-step TCP check with arbitrary bytes, once in one piece and once in
// parts of a random size. Both results must be correct, and therefore equal.
func FuzzSteps(f *testing.F) {
	f.Add([]byte("220 mail.example.org ESMTP\r\n250 ok\r\nversion 7\r\n"), uint8(1))
	f.Add([]byte("-ERR\x00\x1b]0;title\a"), uint8(3))
	f.Add([]byte("220 250 version \xc3\xa9"), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, part uint8) {
		a := attemptOf(balancer.Health{Type: balancer.TCPHealth, Steps: []balancer.HealthStep{
			{Expect: "220"}, {ExpectHex: "323530", SendHex: "00ff"}, {ExpectRegexp: `version\s+[^\d]*(é|7+)`},
		}})
		whole, errWhole := a.converse(answer{Reader: bytes.NewReader(data)})
		parts, errParts := a.converse(answer{Reader: bytes.NewReader(data), most: int(part%7) + 1})
		if whole != parts || fmt.Sprint(errWhole) != fmt.Sprint(errParts) {
			t.Errorf("converse(%q) = %q, %v in one piece, but %q, %v in parts of %d bytes; want equal results", data, whole, errWhole, parts, errParts, part%7+1)
		}
		legible(t, whole, errWhole)
		_, rest, first := bytes.Cut(data, []byte("220"))
		_, rest, second := bytes.Cut(rest, []byte("250"))
		if third := regexp.MustCompile(`version\s+[^\d]*(é|7+)`).Match(rest); len(data) < maxAnswer && (first && second && third) != (errWhole == nil) {
			t.Errorf("converse(%q) = %v, want passed = %v", data, errWhole, first && second && third)
		}
	})
}
