package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"vipd/balancer/lib/sockerr"
)

// secure starts TLS on conn, and offers the application protocol alpn. The certificate must be
// valid for the definition's host or, without one, for the address.
func (a *attempt) secure(ctx context.Context, conn net.Conn, alpn string) (net.Conn, error) {
	certificates, err := a.files.load(ctx)
	if err != nil {
		return nil, err
	}
	name := a.health.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	name = cmp.Or(name, a.at.Addr().String()) // no SNI is sent for an address, but the certificate must contain it
	config := &tls.Config{
		ServerName: name, RootCAs: certificates.authors, Certificates: certificates.own, NextProtos: []string{alpn},
	}
	if !a.health.Verify {
		acceptAny(config)
	}
	secured := tls.Client(conn, config)
	err = secured.HandshakeContext(ctx)
	state := secured.ConnectionState()
	certs := state.PeerCertificates
	if unverified, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		certs = unverified.UnverifiedCertificates // the connection's state has only verified certificates
	}
	if len(certs) > 0 {
		c := certs[0]
		a.notes.note("%s, %s; certificate of %s for %s, valid from %s to %s, issued by %s", tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite),
			c.Subject, names(c), c.NotBefore.UTC().Format(time.DateTime), c.NotAfter.UTC().Format(time.DateTime), c.Issuer)
	}
	if err != nil {
		return nil, a.tlsError(err, name)
	}
	return secured, nil
}

// acceptAny makes the client accept every certificate. It also enables versions and ciphers that
// crypto/tls does not offer by default, such as TLS 1.0 and RSA key exchange. This does not weaken
// the check, which verifies nothing anyway.
func acceptAny(c *tls.Config) {
	c.InsecureSkipVerify = true
	c.MinVersion = tls.VersionTLS10
	for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		c.CipherSuites = append(c.CipherSuites, suite.ID)
	}
}

func (a *attempt) tlsError(err error, name string) error {
	var (
		invalid x509.CertificateInvalidError
		host    x509.HostnameError
		unknown x509.UnknownAuthorityError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert.NotBefore.After(time.Now()):
		return fmt.Errorf("certificate is not valid before %s", invalid.Cert.NotBefore.UTC().Format(time.DateTime))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("certificate expired on %s", invalid.Cert.NotAfter.UTC().Format(time.DateTime))
	case errors.As(err, &host) && len(host.Certificate.DNSNames)+len(host.Certificate.IPAddresses) == 0:
		return fmt.Errorf("certificate has only the common name %s, which vipd ignores: add a subjectAltName to the certificate, or set verify = false",
			excerpt([]byte(host.Certificate.Subject.CommonName)))
	case errors.As(err, &host):
		return fmt.Errorf("certificate is for %s, not for %s: set host to one of its names", names(host.Certificate), name)
	case errors.As(err, &unknown):
		return errors.New("certificate is from an authority that is not trusted here: set ca_file, or verify = false")
	case errors.As(err, &record):
		return fmt.Errorf("answered %s, which is not TLS", excerpt(record.RecordHeader[:]))
	case fromRemote(err):
		return refusedTLS(err)
	case timedOut(err):
		return fmt.Errorf("connected, but the TLS handshake did not finish within %s", a.timeout())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), sockerr.Is(err, syscall.ECONNRESET, syscall.EPIPE):
		return errors.New("closed the connection during the TLS handshake")
	}
	return fmt.Errorf("TLS handshake: %w", bare(err))
}

// fromRemote reports whether err is a TLS alert from the target. crypto/tls has no type for these
// errors.
func fromRemote(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

func refusedTLS(err error) error {
	return fmt.Errorf("refused TLS: %s", strings.TrimPrefix(bare(err).Error(), "tls: "))
}

func names(c *x509.Certificate) string {
	all := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "no name at all"
	}
	const maxNames = 5
	if len(all) > maxNames {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNames], ", "), len(all)-maxNames)
	}
	return strings.Join(all, ", ")
}
