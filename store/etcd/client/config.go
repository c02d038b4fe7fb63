package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"vipd/store/etcd/schema"

	"google.golang.org/grpc/credentials"
)

// Config is the configuration of the client. It corresponds to [etcd] in the daemon's
// configuration.
type Config struct {
	// Endpoints lists the URLs of members, or of proxies in front of them. At least one URL is
	// required. All must be http, or all must be https.
	Endpoints []string
	// Prefix is the prefix of all keys, such as /vipd.
	Prefix string
	// Username and PasswordFile authenticate the client. Without them, etcd must have no
	// authentication, or must use the client certificate.
	Username     string
	PasswordFile string
	// CAFile contains the certificates of the authorities that sign server certificates. The
	// default is the system's authorities.
	CAFile string
	// CertFile and KeyFile contain the client's certificate and key.
	CertFile string
	KeyFile  string
}

// Check returns the mistakes in c. Errors name the fields. Check does not read files.
func (c Config) Check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := schema.NewKeys(c.Prefix); err != nil {
		add("prefix: %w", err)
	}
	if len(c.Endpoints) == 0 {
		add(`endpoints: name at least one member, such as "http://127.0.0.1:2379"`)
	}
	secure := 0
	for i, endpoint := range c.Endpoints {
		u, err := url.Parse(endpoint)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || !isPort(u.Port()):
			// Parse's error is not returned, because it may contain a password.
			add(`endpoints[%d]: needs a URL with a port, such as "http://127.0.0.1:2379" or "https://etcd1:2379"`, i)
			continue
		case u.User != nil:
			add("endpoints[%d]: the URL must not contain a user: set username and password_file", i)
		case strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
			add("endpoints[%d]: nothing may follow the port", i)
		}
		if u.Scheme == "https" {
			secure++
		}
	}
	if secure > 0 && secure < len(c.Endpoints) {
		add("endpoints: either all must use http, or all must use https")
	}
	if (c.CAFile != "" || c.CertFile != "" || c.KeyFile != "") && secure == 0 {
		add("ca_file, cert_file and key_file can be used only with https endpoints")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		add("cert_file and key_file must be set together")
	}
	if (c.Username == "") != (c.PasswordFile == "") {
		add("username and password_file must be set together")
	}
	return errors.Join(errs...)
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// handshakes are TLS credentials that read the files for each handshake, because certificates may
// be renewed while the daemon runs.
type handshakes struct {
	credentials.TransportCredentials
	config Config
}

// ClientHandshake runs a handshake with the current files.
func (h handshakes) ClientHandshake(ctx context.Context, name string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	fresh, err := h.config.tls()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(fresh).ClientHandshake(ctx, name, conn)
}

// Clone returns h, which is immutable.
func (h handshakes) Clone() credentials.TransportCredentials { return h }

// tls reads the authorities and the client's certificate.
func (c Config) tls() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading ca_file: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca_file %s contains no certificate", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file %s and key_file %s can't be used: %w", c.CertFile, c.KeyFile, err)
		}
		out.GetClientCertificate = func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &pair, c.unfit(&pair, asked)
		}
	}
	return out, nil
}

// Unusable returns the reason why the content of a TLS file is unusable. It returns "" if each file
// is usable or can't be read.
func (c Config) Unusable() string {
	var unread *fs.PathError
	if _, err := c.tls(); err != nil && !errors.As(err, &unread) {
		return err.Error()
	}
	return ""
}

// unfit returns the reason why a member would refuse the client's certificate, or nil. The member
// would close the connection after the handshake, usually before the client can read the reason.
func (c Config) unfit(pair *tls.Certificate, asked *tls.CertificateRequestInfo) error {
	if until := pair.Leaf.NotAfter; time.Now().After(until) {
		return fmt.Errorf("cert_file %s expired on %s", c.CertFile, until.Format(time.RFC3339))
	}
	if err := asked.SupportsCertificate(pair); err != nil {
		return fmt.Errorf("etcd would refuse cert_file %s: %w", c.CertFile, err)
	}
	return nil
}
