package probe_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/dataplane/probe"
	"vipd/test/lab"
	"vipd/test/wait"
)

// acceptVar is the environment variable that makes the test binary a server that accepts and drops
// connections. The server is a separate process, so BenchmarkTenThousand does not measure its cost.
const acceptVar = "VIPD_TEST_ACCEPT"

func TestMain(m *testing.M) {
	if os.Getenv(acceptVar) != "" {
		fmt.Fprintln(os.Stderr, accept())
		os.Exit(1)
	}
	lab.Main(m)
}

// accept listens on a port and prints the port. It then accepts connections until an error occurs.
func accept() error {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return err
	}
	fmt.Println("port", l.Addr().(*net.TCPAddr).Port)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_ = c.Close()
	}
}

// quiet fails the test if any goroutines are left when it ends.
func quiet(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		err := goleak.Find(before)
		for range 20 { // repeated, because on a busy machine goroutines may return late
			if err == nil {
				return
			}
			err = goleak.Find(before)
		}
		t.Error(err)
	})
}

// serve runs a TCP server on loopback. Each connection is closed when handle returns or the test
// ends.
func serve(t *testing.T, handle func(net.Conn)) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	ended := false
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			if ended {
				_ = c.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				handle(c)
				_ = c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		mu.Lock()
		ended = true
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		_ = ln.Close()
		wg.Wait()
	})
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// answersUnread returns a handler that sends a text and closes the connection before it has read
// the whole request. So the kernel resets the connection.
func answersUnread(text string) func(net.Conn) {
	return func(c net.Conn) {
		buf := make([]byte, 1)
		if _, err := c.Read(buf); err == nil { // do not read the remaining request
			_, _ = io.WriteString(c, text)
		}
	}
}

func answerWith(text string) func(net.Conn) {
	return func(c net.Conn) {
		if readRequest(c) == nil {
			_, _ = io.WriteString(c, text)
		}
	}
}

// readRequest reads an HTTP request up to the empty line after the headers.
func readRequest(c net.Conn) error {
	var got []byte
	buf := make([]byte, 1024)
	for !strings.Contains(string(got), "\r\n\r\n") {
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		got = append(got, buf[:n]...)
	}
	return nil
}

func stuck(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// endless returns a handler that sends head, and then sends the text again forever.
func endless(head, again string) func(net.Conn) {
	return func(c net.Conn) {
		if readRequest(c) != nil {
			return
		}
		_, err := io.WriteString(c, head)
		for again := strings.Repeat(again, 1000); err == nil; {
			_, err = io.WriteString(c, again)
		}
	}
}

// drip returns a handler that sends head, and then sends single bytes with a pause after each.
func drip(head string) func(net.Conn) {
	return func(c net.Conn) {
		if readRequest(c) != nil {
			return
		}
		_, err := io.WriteString(c, head)
		for err == nil {
			time.Sleep(20 * time.Millisecond) // deliberately slow, so the answer never pauses for long but is never complete
			_, err = io.WriteString(c, "x")
		}
	}
}

// overTLS returns a handler that starts TLS with the configuration c, and then calls handle.
func overTLS(c *tls.Config, handle func(net.Conn)) func(net.Conn) {
	return func(raw net.Conn) {
		conn := tls.Server(raw, c)
		if err := conn.Handshake(); err == nil {
			handle(conn)
		}
	}
}

// define returns a check's definition with the decoder's defaults. change may then edit the
// definition.
func define(kind balancer.HealthType, change func(*balancer.Health)) *balancer.Health {
	h := &balancer.Health{
		Type: kind, Verify: true, Interval: 600 * time.Millisecond, FastInterval: 100 * time.Millisecond, Timeout: 300 * time.Millisecond,
		Rise: 2, Fall: 3, From: balancer.HealthFromNode,
	}
	if kind == balancer.HTTPHealth || kind == balancer.HTTPSHealth {
		h.Path, h.Method, h.Status = "/", "GET", "200-399"
	}
	if change != nil {
		change(h)
	}
	return h
}

// check runs a check of a TCP port once, and compares the outcome and the start of the result's
// text.
func check(t *testing.T, h *balancer.Health, at netip.AddrPort, want health.Outcome, text string) {
	t.Helper()
	checkOver(t, h, balancer.TCP, at, want, text)
}

// checkOver is like check, but for a port with the specified protocol.
func checkOver(t *testing.T, h *balancer.Health, proto balancer.Protocol, at netip.AddrPort, want health.Outcome, text string) {
	t.Helper()
	got := patient(t, newProbe(h, proto), at)
	for range 3 { // repeated, because on a busy machine the answer may be late
		late := " within " + h.Timeout.String()
		if got.Outcome == want && strings.HasPrefix(got.Text, text) || !strings.Contains(got.Text, late) && !strings.Contains(got.Text, "not over in time") {
			break
		}
		longer := *h
		longer.Timeout *= 4
		text = strings.ReplaceAll(text, late, " within "+longer.Timeout.String())
		h = &longer
		got = patient(t, newProbe(h, proto), at)
	}
	if got.Outcome != want || !strings.HasPrefix(got.Text, text) {
		t.Errorf("result = %s: %q, want %s: %q", got.Outcome, got.Text, want, text)
	}
	if got.Took > h.Timeout+wait.Patience {
		t.Errorf("check took %s, want at most the timeout of %s and some slack", got.Took, h.Timeout)
	}
}

// busy is the start of a result's text if the machine was too busy to run the check.
const busy = "not run: this host was suspended, or too busy"

// patient runs a check. If the machine was too busy, it repeats the check.
func patient(t *testing.T, p *probe.Probe, at netip.AddrPort) health.Result {
	t.Helper()
	got := p.Check(t.Context(), at)
	for range 10 {
		if !strings.HasPrefix(got.Text, busy) {
			break
		}
		got = p.Check(t.Context(), at)
	}
	return got
}

// closedPort returns an address and port at which nothing listens until the test ends. To occupy
// the port, it opens a TCP connection from the port, and a UDP socket that accepts datagrams from
// only one peer.
func closedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	peer := ln.Addr().(*net.TCPAddr).AddrPort()
	for range 10 { // another program may use the same port for UDP
		var c net.Conn
		if c, err = net.Dial("tcp", peer.String()); err != nil {
			break
		}
		t.Cleanup(func() { _ = c.Close() })
		at := c.LocalAddr().(*net.TCPAddr).AddrPort()
		var u *net.UDPConn
		if u, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(at), net.UDPAddrFromAddrPort(peer)); err == nil {
			t.Cleanup(func() { _ = u.Close() })
			return at
		}
	}
	t.Fatal(err)
	return netip.AddrPort{}
}

// authority is a certificate authority for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), next: 1}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.key = key
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// issue creates a certificate for a name and for 127.0.0.1. It writes the certificate to NAME.pem,
// and its key to NAME.key.
func (a *authority) issue(name string, from, to time.Duration) tls.Certificate {
	a.t.Helper()
	a.next++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "PRIVATE KEY", keyDER)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// serveUDP runs a UDP server that answers each datagram with the result of answer. If the result is
// nil, the server does not answer.
func serveUDP(t *testing.T, answer func([]byte) []byte) netip.AddrPort {
	t.Helper()
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := pc.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if text := answer(buf[:n]); err == nil && text != nil {
				_, _ = pc.WriteToUDPAddrPort(text, from)
			}
		}
	})
	t.Cleanup(func() { _ = pc.Close(); wg.Wait() })
	return pc.LocalAddr().(*net.UDPAddr).AddrPort()
}

func newProbe(h *balancer.Health, proto balancer.Protocol) *probe.Probe {
	return probe.New(health.Subject{Health: h, Proto: proto})
}

func contextThatEnds(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	timer := time.AfterFunc(d, cancel)
	return ctx, func() { timer.Stop(); cancel() }
}
