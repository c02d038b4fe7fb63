package probe

import (
	"bytes"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/net/dns/dnsmessage"

	"vipd/balancer"
	"vipd/balancer/health"
)

// answer is a connection that returns prepared bytes.
type answer struct {
	net.Conn
	*bytes.Reader
}

func (a answer) Read(p []byte) (int, error) { return a.Reader.Read(p) }

// legible fails the test if a result would write control characters to a terminal, or is too long
// for a line of a table.
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

// FuzzHTTPAnswer judges arbitrary bytes as the answer to an HTTP check.
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

// FuzzDNSAnswer judges arbitrary bytes as the answer to a DNS check.
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

// FuzzExpect searches arbitrary bytes for the text that a TCP check expects.
func FuzzExpect(f *testing.F) {
	f.Add([]byte("220 mail.example.org ESMTP\r\n"))
	f.Add([]byte("-ERR\x00\x1b]0;title\a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := attemptOf(balancer.Health{Type: balancer.TCPHealth, Expect: "220"}).expect(bytes.NewReader(data))
		if found := bytes.Contains(data[:min(len(data), maxAnswer)], []byte("220")); found != (err == nil) {
			t.Errorf("expect(%q) = %v, want found = %v", data, err, found)
		}
		legible(t, text, err)
	})
}
