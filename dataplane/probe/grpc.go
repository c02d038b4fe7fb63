package probe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"vipd/balancer"
)

// grpcOverTLS reports whether a definition's gRPC checks use TLS, which certificate settings
// enable.
func grpcOverTLS(h *balancer.Health) bool { return h.CAFile != "" || h.CertFile != "" || !h.Verify }

// grpc asks grpc.health.v1 for the status of the service that the definition's query names. If the
// query is empty, it asks for the status of the whole server.
func (a *attempt) grpc(ctx context.Context) (string, error) {
	conn, err := a.connect(ctx, "tcp")
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	abort(conn)
	if a.files != nil {
		secured, err := a.secure(ctx, conn, "h2")
		if err != nil {
			return "", err
		}
		conn = secured
	}
	a.clearInterrupts()
	_ = conn.SetDeadline(time.Time{}) // the gRPC client observes ctx itself, and would report an expired deadline as a lost connection
	watched := &watchedConn{Conn: conn}
	client, err := a.client(watched)
	if err != nil {
		return "", localf("creating a gRPC client: %w", err)
	}
	defer func() { _ = client.Close() }()
	request := &grpc_health_v1.HealthCheckRequest{Service: a.health.Query}
	a.notes.note("calling grpc.health.v1.Health/Check for the service %q", a.health.Query)
	answer, err := grpc_health_v1.NewHealthClient(client).Check(ctx, request)
	if err != nil {
		return "", a.callError(err, watched)
	}
	a.notes.note("answered %s", answer.Status)
	if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return "", fmt.Errorf("answered %s", answer.Status)
	}
	return "answered SERVING", nil
}

// client returns a gRPC client that uses only the connection conn.
func (a *attempt) client(conn net.Conn) (*grpc.ClientConn, error) {
	host := cmp.Or(a.health.Host, a.at.String())
	var used atomic.Bool
	return grpc.NewClient("passthrough:///"+a.at.String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // conn already uses TLS if needed
		grpc.WithAuthority(host), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithUserAgent("vipd-health"), grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errors.New("the connection was lost")
			}
			return conn, nil
		}))
}

// callError explains a failed call over the connection w.
func (a *attempt) callError(err error, w *watchedConn) error {
	s := status.Convert(err)
	got, first := w.seen()
	// The client has no error code for an ordinary HTTP/2 page.
	page, isPage := strings.CutPrefix(s.Message(), "unexpected HTTP status code received from server: ")
	page, _, _ = strings.Cut(page, ";")
	switch {
	case !speaksHTTP2(first):
		line, _, _ := bytes.Cut(first, []byte("\r\n"))
		return fmt.Errorf("does not speak gRPC: answered %s", excerpt(line))
	case isPage:
		return fmt.Errorf("does not speak gRPC: answered HTTP status %s", page)
	case s.Code() == codes.DeadlineExceeded && got == 0:
		return fmt.Errorf("connected, but no data arrived within %s", a.timeout())
	case s.Code() == codes.DeadlineExceeded:
		return fmt.Errorf("no answer to the call within %s", a.timeout())
	case s.Code() == codes.NotFound:
		return fmt.Errorf("does not know the service %q", a.health.Query)
	case s.Code() == codes.Unimplemented:
		return errors.New("speaks gRPC, but has no grpc.health.v1 service")
	case s.Code() == codes.Unavailable && got == 0:
		return errors.New("closed the connection without sending data")
	case s.Code() == codes.Unavailable:
		return errors.New("closed the connection without an answer to the call")
	}
	return fmt.Errorf("answered %s: %s", s.Code(), firstLine(s.Message()))
}

// watchedConn is a connection that counts the bytes that are read, and retains the first 100.
type watchedConn struct {
	net.Conn

	mu    sync.Mutex // the gRPC client reads in its own goroutine
	read  int
	first []byte
}

func (w *watchedConn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.read += n
	if room := 100 - len(w.first); room > 0 {
		w.first = append(w.first, p[:min(n, room)]...)
	}
	return n, err
}

// seen returns the number of bytes that were read, and the first 100 of them.
func (w *watchedConn) seen() (int, []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.read, bytes.Clone(w.first)
}

// speaksHTTP2 reports whether the first bytes from a server may be HTTP/2, which gRPC uses. HTTP/2
// starts with a SETTINGS frame (RFC 9113, section 3.4), whose type follows the three bytes of its
// length.
func speaksHTTP2(first []byte) bool {
	const frameType, settings = 3, 4
	return len(first) <= frameType || first[frameType] == settings
}
