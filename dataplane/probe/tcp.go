package probe

import (
	"context"
	"fmt"
	"io"
	"syscall"

	"vipd/balancer/lib/sockerr"
)

// tcp connects. If the definition has them, it sends a text and waits for the expected answer.
func (a *attempt) tcp(ctx context.Context) (string, error) {
	conn, err := a.connect(ctx, "tcp")
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	abort(conn)
	if a.health.Send == "" && a.health.Expect == "" {
		return "connected", nil
	}
	conn = a.record(conn)
	if a.health.Send != "" {
		_, err := io.WriteString(conn, a.health.Send)
		if err != nil && (a.health.Expect == "" || !resets(err)) {
			return "", a.sendError(err)
		}
	}
	if a.health.Expect == "" {
		return "connected, and sent " + size(len(a.health.Send)), nil
	}
	return a.expect(conn)
}

// resets reports whether err means that the peer has reset the connection. An answer that arrived
// earlier can still be read. Servers that answer without reading everything reset the connection
// when they close it.
func resets(err error) bool { return sockerr.Is(err, syscall.ECONNRESET, syscall.EPIPE) }

// sendError explains why a text could not be sent.
func (a *attempt) sendError(err error) error {
	if timedOut(err) {
		return fmt.Errorf("connected, but it did not read what was sent within %s", a.timeout())
	}
	return fmt.Errorf("closed the connection before everything was sent: %w", bare(err))
}
