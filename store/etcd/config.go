package etcd

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

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// Config is how etcd is reached: [etcd] of the daemon's configuration.
type Config struct {
	// Endpoints are the URLs of members or of proxies before them. At least one, all http or all https.
	Endpoints []string
	// Prefix is what all keys begin with, such as /vipd.
	Prefix string
	// Username, and the file that its password is in. Without them etcd has no authentication, or goes by the client certificate.
	Username     string
	PasswordFile string
	// CAFile has the authorities that a server's certificate may be of. Default: those of the system.
	CAFile string
	// CertFile and KeyFile are the client's certificate.
	CertFile string
	KeyFile  string
}

// Check returns what is wrong with c, without looking at any file. Errors name the fields.
func (c Config) Check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := NewKeys(c.Prefix); err != nil {
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
			// The error of Parse is not passed on: the text may hold a password.
			add(`endpoints[%d]: needs a URL with a port, such as "http://127.0.0.1:2379" or "https://etcd1:2379"`, i)
			continue
		case u.User != nil:
			add("endpoints[%d]: a user does not belong in the URL: set username and password_file", i)
		case strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
			add("endpoints[%d]: nothing may follow the port", i)
		}
		if u.Scheme == "https" {
			secure++
		}
	}
	if secure > 0 && secure < len(c.Endpoints) {
		add("endpoints: either all are http or all are https")
	}
	if (c.CAFile != "" || c.CertFile != "" || c.KeyFile != "") && secure == 0 {
		add("ca_file, cert_file and key_file are for endpoints that begin with https")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		add("cert_file and key_file belong together")
	}
	if (c.Username == "") != (c.PasswordFile == "") {
		add("username and password_file belong together")
	}
	return errors.Join(errs...)
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// The life of a connection.
const (
	// dialTimeout bounds getting a token for a user.
	dialTimeout = 5 * time.Second
	// keepaliveTime and keepaliveTimeout find a connection dead on which nothing comes back. Servers refuse who asks
	// more often than every 5 s.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// slowestDial is the longest pause between attempts to connect. gRPC's own, two minutes, is longer than a question waits.
	slowestDial = 3 * time.Second
	// mostReceived bounds one answer, in bytes.
	mostReceived = 64 << 20
)

// open returns a client, which connects by and by, and outlives ctx. The password is read each time, and certificates for each
// connection, so that what was exchanged counts.
//
// A user's token is got here and given to the client, which does not renew it then: once it has ended, questions fail
// and a new client is due. Left to itself the client asks for the new token in the name of the old one, which servers
// before 3.5 refuse, whereupon it asks again from within that question, and so on, as long as it may.
func (c Config) open(ctx context.Context) (*clientv3.Client, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	pauses := backoff.DefaultConfig
	pauses.MaxDelay = slowestDial
	config := clientv3.Config{
		Endpoints: c.Endpoints, Context: context.WithoutCancel(ctx), DialTimeout: dialTimeout,
		DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
		MaxCallRecvMsgSize: mostReceived, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: dialTimeout})},
	}
	var err error
	if strings.HasPrefix(c.Endpoints[0], "https:") {
		if config.TLS, err = c.tls(); err != nil {
			return nil, err
		}
		config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(handshakes{credentials.NewTLS(config.TLS), c}))
	}
	if c.Username != "" {
		if config.Token, err = c.token(ctx, config); err != nil {
			return nil, err
		}
	}
	client, err := clientv3.New(config)
	return client, plain(err)
}

// token asks for one in the name of the user. It is empty where etcd has no authentication.
func (c Config) token(ctx context.Context, config clientv3.Config) (string, error) {
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("reading password_file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("password_file %s is empty", c.PasswordFile)
	}
	client, err := clientv3.New(config)
	if err != nil {
		return "", plain(err)
	}
	defer func() { _ = client.Close() }() // nothing is left to be done about it
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// Not through the client, for the reason in link.get.
	answer, err := etcdserverpb.NewAuthClient(client.ActiveConnection()).Authenticate(ctx,
		&etcdserverpb.AuthenticateRequest{Name: c.Username, Password: password})
	if is(err, rpctypes.ErrAuthNotEnabled) {
		return "", nil
	}
	return answer.GetToken(), plain(err)
}

// handshakes are those of TLS, each of which reads the files again: a client lives for as long as the daemon, and authorities and
// certificates do not.
type handshakes struct {
	credentials.TransportCredentials
	config Config
}

// ClientHandshake makes one.
func (h handshakes) ClientHandshake(ctx context.Context, name string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	fresh, err := h.config.tls()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(fresh).ClientHandshake(ctx, name, conn)
}

// Clone returns h, of which nothing changes.
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
			return nil, fmt.Errorf("ca_file %s has no certificate in it", c.CAFile)
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

// Unusable says which of the files of TLS hold the wrong thing; "" means none, or that they can't be read.
func (c Config) Unusable() string {
	var unread *fs.PathError
	if _, err := c.tls(); err != nil && !errors.As(err, &unread) {
		return err.Error()
	}
	return ""
}

// unfit says why a member that asks for the client's certificate would refuse it. It would hang up after the handshake, as a rule
// before its reason is read.
func (c Config) unfit(pair *tls.Certificate, asked *tls.CertificateRequestInfo) error {
	if until := pair.Leaf.NotAfter; time.Now().After(until) {
		return fmt.Errorf("cert_file %s expired on %s", c.CertFile, until.Format(time.RFC3339))
	}
	if err := asked.SupportsCertificate(pair); err != nil {
		return fmt.Errorf("etcd would refuse cert_file %s: %w", c.CertFile, err)
	}
	return nil
}
