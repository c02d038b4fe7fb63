package probe_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/test/wait"
)

// TestUnverifiedTLS checks servers that crypto/tls refuses with its default settings. The checks
// must pass if verify is false, and fail otherwise.
func TestUnverifiedTLS(t *testing.T) {
	quiet(t)
	ca := newAuthority(t)
	elliptical, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	serial := big.NewInt(0x7f11223344556677)
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "old"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &elliptical.PublicKey, elliptical)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(der, serial.Bytes())
	der[at] |= 0x80
	negative := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: elliptical}
	if der, err = x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key); err != nil {
		t.Fatal(err)
	}
	plain := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	for name, server := range map[string]*tls.Config{
		"TLS 1.0":          {Certificates: plain, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
		"RSA key exchange": {Certificates: plain, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}},
		"negative serial":  {Certificates: []tls.Certificate{negative}},
	} {
		t.Run(name, func(t *testing.T) {
			target := serve(t, overTLS(server, answerWith(ok)))
			check(t, define(balancer.HTTPSHealth, func(h *balancer.Health) { h.Verify, h.Timeout = false, wait.Patience }), target, health.Passed, "answered 200 OK")
			check(t, define(balancer.HTTPSHealth, func(h *balancer.Health) { h.CAFile, h.Timeout = ca.file("ca.pem"), wait.Patience }), target, health.Failed, "")
		})
	}
}

// TestCertificateWithoutNames checks a server whose certificate has only a common name. The result
// must not advise users to set host, because this would not help.
func TestCertificateWithoutNames(t *testing.T) {
	quiet(t)
	ca := newAuthority(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(9), Subject: pkix.Name{CommonName: "shop.example"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	server := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	check(t, define(balancer.HTTPSHealth, func(h *balancer.Health) {
		h.Host, h.CAFile, h.Timeout = "shop.example", ca.file("ca.pem"), wait.Patience
	}),
		serve(t, overTLS(server, answerWith(ok))), health.Failed, `certificate has only the common name "shop.example", which vipd ignores`)
}
