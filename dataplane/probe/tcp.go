package probe

import (
	"context"
	"fmt"
	"syscall"

	"vipd/balancer/lib/sockerr"
)

// tcp connects to the target. If the definition has steps, it performs them.
func (a *attempt) tcp(ctx context.Context) (string, error) {
	conn, err := a.connect(ctx, "tcp")
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	abort(conn)
	if len(a.steps) == 0 {
		return "connected", nil
	}
	return a.converse(a.record(conn))
}

// resets reports whether err means that the peer has reset the connection. A server that answers
// without reading the whole request resets the connection when it closes it. The answer can still
// be read if it arrived before the reset.
func resets(err error) bool { return sockerr.Is(err, syscall.ECONNRESET, syscall.EPIPE) }

func (a *attempt) sendError(err error) error {
	if timedOut(err) {
		return fmt.Errorf("connected, but the endpoint did not read the sent data within %s", a.timeout())
	}
	return fmt.Errorf("closed the connection before all data was sent: %w", bare(err))
}
