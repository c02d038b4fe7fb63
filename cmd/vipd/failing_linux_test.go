package main

import (
	"bufio"
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
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
)

// failure describes a way in which an endpoint fails.
type failure struct {
	name  string
	check balancer.HealthType
	// reply sends the server's answer during the failure. Its argument answer is a healthy server's
	// answer. If reply is nil, the server sends this answer.
	reply func(c net.Conn, answer string)
	// certificate selects the certificate that the server presents during the failure.
	certificate string
	// If deaf is true, the listener is closed during the failure. If cut is true, packets are
	// dropped.
	deaf, cut bool
}

// slowByte is the pause between two bytes of a slow answer.
const slowByte = 50 * time.Millisecond

func failures() []failure {
	return []failure{
		{name: "refused", check: balancer.TCPHealth, deaf: true},
		{name: "port unreachable", check: balancer.UDPHealth, deaf: true},
		{name: "blackholed", check: balancer.TCPHealth, cut: true},
		{name: "half-open", check: balancer.HTTPHealth, reply: func(c net.Conn, _ string) { _, _ = io.Copy(io.Discard, c) }},
		{name: "slow", check: balancer.HTTPHealth, reply: func(c net.Conn, answer string) {
			for i := range []byte(answer) {
				if _, err := io.WriteString(c, answer[i:i+1]); err != nil {
					return
				}
				time.Sleep(scaled(slowByte)) // intentionally slow
			}
		}},
		{name: "wrong status", check: balancer.HTTPHealth, reply: func(c net.Conn, _ string) {
			_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
		}},
		{name: "truncated", check: balancer.HTTPHealth, reply: func(c net.Conn, answer string) { _, _ = io.WriteString(c, answer[:len(answer)-3]) }},
		{name: "endless body", check: balancer.HTTPHealth, reply: func(c net.Conn, _ string) {
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for more := strings.Repeat("more ", 1000); err == nil; time.Sleep(time.Millisecond) { // intentionally slow
				_, err = io.WriteString(c, more)
			}
		}},
		{name: "expired certificate", check: balancer.HTTPSHealth, certificate: "expired"},
		{name: "wrong name", check: balancer.HTTPSHealth, certificate: "other"},
	}
}

// certificates holds a valid certificate for a server's name, an expired certificate, and another
// server's certificate.
type certificates struct {
	of    map[string]*tls.Certificate
	roots *x509.CertPool
	file  string // the path of a file that contains all these certificates
}

// siteName is the name of TLS servers.
const siteName = "shop.example"

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	c := &certificates{of: map[string]*tls.Certificate{}, roots: x509.NewCertPool(), file: filepath.Join(t.TempDir(), "roots.pem")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var file []byte
	for i, name := range []string{"", "expired", "other"} {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{siteName},
			NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		}
		switch name {
		case "expired":
			template.NotAfter = time.Now().Add(-time.Hour)
		case "other":
			template.DNSNames = []string{"other.example"}
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		c.of[name] = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	c.roots.AppendCertsFromPEM(file)
	if err := os.WriteFile(c.file, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// quick returns the key exchanges that clients and servers use. All others are too slow on an
// emulated machine.
func quick() []tls.CurveID { return []tls.CurveID{tls.X25519} }

// site is an endpoint's server. After a call to fail, it fails as its failure describes.
type site struct {
	t       *testing.T
	failure failure
	name    string
	ns      *lab.NS
	at      netip.AddrPort
	certs   *certificates
	failing atomic.Bool
	close   func() // closes the listener
	running sync.WaitGroup
}

func newSite(t *testing.T, f failure, name string, ns *lab.NS, at netip.AddrPort, certs *certificates) *site {
	s := &site{t: t, failure: f, name: name, ns: ns, at: at, certs: certs}
	s.listen()
	t.Cleanup(func() { s.close(); s.running.Wait() })
	return s
}

func (s *site) fail() {
	s.failing.Store(true)
	switch {
	case s.failure.deaf:
		s.close()
	case s.failure.cut:
		s.ns.Exec("iptables", s.rule("-A")...)
	}
}

func (s *site) heal() {
	s.failing.Store(false)
	switch {
	case s.failure.deaf:
		s.listen()
	case s.failure.cut:
		s.ns.Exec("iptables", s.rule("-D")...)
	}
}

func (s *site) rule(verb string) []string {
	return []string{verb, "INPUT", "-p", "tcp", "--dport", fmt.Sprint(s.at.Port()), "-j", "DROP"}
}

func (s *site) listen() {
	s.t.Helper()
	if s.failure.check == balancer.UDPHealth {
		pc, err := s.ns.ListenPacket("udp", s.at.String())
		if err != nil {
			s.t.Fatal(err)
		}
		s.close = func() { _ = pc.Close() }
		s.running.Go(func() {
			buf := make([]byte, 100)
			for {
				_, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = pc.WriteTo([]byte(s.name), from)
			}
		})
		return
	}
	ln, err := s.ns.Listen("tcp", s.at.String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.close = func() { _ = ln.Close() }
	s.running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() { s.serve(c) })
		}
	})
}

func (s *site) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(scaled(2 * patience)))
	failing := s.failing.Load()
	if s.failure.check == balancer.HTTPSHealth {
		config := &tls.Config{Certificates: []tls.Certificate{*s.certs.of[""]}, CurvePreferences: quick()}
		if failing {
			config.Certificates[0] = *s.certs.of[s.failure.certificate]
		}
		c = tls.Server(c, config)
	}
	if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
		return
	}
	answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(ready)+len(s.name), ready+s.name)
	if failing && s.failure.reply != nil {
		s.failure.reply(c, answer)
		return
	}
	_, _ = io.WriteString(c, answer)
}

// ready is the first part of a healthy server's answer.
const ready = "ready "

// patience is a client's timeout, which is longer than a check's timeout.
const patience = time.Second

// request sends a request to a VIP over a new connection, as the site's clients do. It returns the
// name of the server that answers.
func (s *site) request(from *lab.NS, at netip.AddrPort) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), scaled(patience))
	defer cancel()
	network := "tcp"
	if s.failure.check == balancer.UDPHealth {
		network = "udp"
	}
	c, err := from.Dial(ctx, network, at.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	if s.failure.check == balancer.HTTPSHealth {
		c = tls.Client(c, &tls.Config{ServerName: siteName, RootCAs: s.certs.roots, CurvePreferences: quick()})
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+siteName+"\r\n\r\n"); err != nil {
		return "", err
	}
	if network == "udp" {
		name := make([]byte, 100)
		n, err := c.Read(name)
		return string(name[:n]), err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	name, well := strings.CutPrefix(string(body), ready)
	switch {
	case err != nil:
		return "", err
	case answer.StatusCode != http.StatusOK:
		return "", errors.New(answer.Status)
	case !well:
		return "", fmt.Errorf("answer contains %d unexpected bytes", len(body))
	}
	return name, nil
}
