package client

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// These are the timeouts and size limits of a connection.
const (
	// dialTimeout is the timeout of an attempt to connect.
	dialTimeout = 5 * time.Second
	// keepaliveTime and keepaliveTimeout detect a dead connection. Servers refuse clients that send
	// keepalives more often than every 5 s.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// slowestDial is the maximum pause between attempts to connect. gRPC's default of two minutes
	// is longer than the timeout of a request.
	slowestDial = 3 * time.Second
	// maxReceived is the maximum size of an answer, in bytes.
	maxReceived = 64 << 20
)

// Member is a connection to an etcd member or to a proxy.
type Member struct {
	config   Config
	endpoint string
	Client   *clientv3.Client
	token    token
}

// open returns a member that connects when it is first used. Certificates are read for each
// connection.
func (c Config) open(endpoint string) (*Member, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	m := &Member{config: c, endpoint: endpoint}
	pauses := backoff.DefaultConfig
	pauses.MaxDelay = slowestDial
	config := clientv3.Config{
		Endpoints: []string{endpoint}, Context: context.Background(),
		DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
		MaxCallRecvMsgSize: maxReceived, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: dialTimeout}),
			grpc.WithNoProxy(), // http_proxy does not apply to etcd
		},
	}
	if c.Username != "" {
		config.DialOptions = append(config.DialOptions, grpc.WithPerRPCCredentials(&m.token))
	}
	var err error
	if strings.HasPrefix(endpoint, "https:") {
		if config.TLS, err = c.tls(); err != nil {
			return nil, err
		}
		config.DialOptions = append(config.DialOptions, grpc.WithTransportCredentials(handshakes{credentials.NewTLS(config.TLS), c}))
	}
	m.Client, err = clientv3.New(config)
	return m, Plain(err)
}

func (m *Member) close() { _ = m.Client.Close() } // an error would change nothing

// Conn returns the connection. Unlike the client's own methods, requests on this connection do not
// wait until a member listens.
func (m *Member) Conn() *grpc.ClientConn { return m.Client.ActiveConnection() }

// authenticate requests a token. It reads the password file each time, so it notices a new
// password.
func (m *Member) authenticate(ctx context.Context) error {
	text, err := os.ReadFile(m.config.PasswordFile)
	if err != nil {
		return fmt.Errorf("reading password_file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return fmt.Errorf("password_file %s is empty", m.config.PasswordFile)
	}
	answer, err := etcdserverpb.NewAuthClient(m.Conn()).Authenticate(ctx,
		&etcdserverpb.AuthenticateRequest{Name: m.config.Username, Password: password})
	if Is(err, rpctypes.ErrAuthNotEnabled) {
		err = nil
	}
	if err == nil {
		m.token.text.Store(answer.GetToken())
	}
	return err
}

// use makes the member use the token of another member, which may be nil. This saves a new token,
// which etcd would have to store.
func (m *Member) use(other *Member) {
	if other == nil {
		return
	}
	if text := other.token.text.Load(); text != nil {
		m.token.text.Store(text)
	}
}

// prove reads a key with a linearizable read, and returns the revision. A member that has lost the
// other members does not answer. If the user may not read the key, the revision is 0, which still
// proves the member.
func (m *Member) prove(ctx context.Context, key string) (int64, error) {
	if m.config.Username != "" && m.token.text.Load() == nil {
		if err := m.authenticate(ctx); err != nil {
			return 0, err
		}
	}
	answer, err := etcdserverpb.NewKVClient(m.Conn()).Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(key)})
	if Forbidden(err) || m.config.ended(err) {
		err = nil
	}
	return answer.GetHeader().GetRevision(), err
}

// token is a user's token, which is sent with each request. The token of clientv3 itself can't be
// renewed on a connection, because clientv3 would send the old token with this request, and servers
// before 3.5 refuse that.
type token struct{ text atomic.Value }

// GetRequestMetadata returns the header with the token. A request for a token has no such header.
func (t *token) GetRequestMetadata(_ context.Context, uri ...string) (map[string]string, error) {
	text, _ := t.text.Load().(string)
	if text == "" || len(uri) > 0 && strings.HasSuffix(uri[0], "/etcdserverpb.Auth") {
		return nil, nil
	}
	return map[string]string{rpctypes.TokenFieldNameGRPC: text}, nil
}

// RequireTransportSecurity returns false, because tokens also work without TLS.
func (*token) RequireTransportSecurity() bool { return false }
