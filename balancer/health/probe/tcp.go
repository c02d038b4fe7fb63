package probe

import (
	"context"
	"fmt"
	"io"
)

// tcp connects, and where the definition says so, sends something and waits for the expected answer.
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
		if _, err := io.WriteString(conn, a.health.Send); err != nil {
			return "", a.unsent(err)
		}
	}
	if a.health.Expect == "" {
		return "connected, and sent " + size(len(a.health.Send)), nil
	}
	return a.expect(conn)
}

// unsent says why what was to be sent was not.
func (a *attempt) unsent(err error) error {
	if timedOut(err) {
		return fmt.Errorf("connected, but it did not take what was sent within %s", a.timeout())
	}
	return fmt.Errorf("closed the connection before all was sent: %w", bare(err))
}
