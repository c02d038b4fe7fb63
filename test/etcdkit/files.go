package etcdkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Files are the paths of certificates and keys, in PEM.
type Files struct {
	CA, ServerCert, ServerKey, ClientCert, ClientKey string

	pool   *x509.CertPool
	client tls.Certificate
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey // key of ca
}

// NewFiles creates a certificate authority, and certificates for a server on this host and for
// clients.
func NewFiles(t testing.TB) Files { return newFiles(t, "127.0.0.1") }

// newFiles creates a certificate authority, and certificates for the server at host and for
// clients.
func newFiles(t testing.TB, host string) Files {
	t.Helper()
	dir := t.TempDir()
	f := Files{pool: x509.NewCertPool()}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority of " + dir}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	key := newKey(t)
	f.ca, f.key = ca, key
	f.CA, _ = write(t, dir, "ca", ca, ca, key, key)
	server := leaf(2, "server")
	server.IPAddresses = []net.IP{net.ParseIP(host)}
	own := newKey(t)
	f.ServerCert, f.ServerKey = write(t, dir, "server", server, ca, own, key)
	own = newKey(t)
	f.ClientCert, f.ClientKey = write(t, dir, "client", leaf(3, ""), ca, own, key)
	text, err := os.ReadFile(f.CA)
	if err != nil || !f.pool.AppendCertsFromPEM(text) {
		t.Fatalf("reading the authority: %v", err)
	}
	if f.client, err = tls.LoadX509KeyPair(f.ClientCert, f.ClientKey); err != nil {
		t.Fatal(err)
	}
	return f
}

// ClientUntil creates a client certificate with until as its expiry time.
func (f Files) ClientUntil(t testing.TB, until time.Time) (certFile, keyFile string) {
	t.Helper()
	client := leaf(4, "")
	client.NotAfter = until
	return write(t, t.TempDir(), "client", client, f.ca, newKey(t), f.key)
}

// Reissue replaces all certificates, in the same files, with certificates of another authority, and
// returns copies of the previous certificates. A member uses the new certificates after a restart.
func (c *Cluster) Reissue() (former Files) {
	c.t.Helper()
	dir := c.t.TempDir()
	f := newFiles(c.t, c.host)
	former = c.Files
	for _, move := range []struct{ file, fresh, kept *string }{
		{&c.Files.CA, &f.CA, &former.CA}, {&c.Files.ServerCert, &f.ServerCert, &former.ServerCert}, {&c.Files.ServerKey, &f.ServerKey, &former.ServerKey},
		{&c.Files.ClientCert, &f.ClientCert, &former.ClientCert}, {&c.Files.ClientKey, &f.ClientKey, &former.ClientKey},
	} {
		*move.kept = filepath.Join(dir, filepath.Base(*move.file))
		if err := errors.Join(os.Rename(*move.file, *move.kept), os.Rename(*move.fresh, *move.file)); err != nil {
			c.t.Fatal(err)
		}
		*move.fresh = *move.file
	}
	c.Files = f
	return former
}

// leaf returns a certificate template. etcd treats a certificate with a name as a user.
func leaf(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func write(t testing.TB, dir, name string, certificate, issuer *x509.Certificate, key, issuerKey *ecdsa.PrivateKey) (certFile, keyFile string) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, certificate, issuer, &key.PublicKey, issuerKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}
