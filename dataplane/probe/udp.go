package probe

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"syscall"

	"vipd/balancer/lib/sockerr"
)

// udp sends a datagram. If the definition expects a text, an answer must contain it. Otherwise the
// check passes with any answer or none, and fails only if an error such as a closed port is
// reported.
func (a *attempt) udp(ctx context.Context) (string, error) {
	conn, err := a.connect(ctx, "udp")
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	conn = a.record(conn)
	if _, err := conn.Write([]byte(a.health.Send)); err != nil {
		return "", a.deliveryError(err)
	}
	return a.readDatagrams(conn)
}

func (a *attempt) readDatagrams(conn net.Conn) (string, error) {
	buf := make([]byte, maxAnswer)
	var wrong error
	for {
		n, err := conn.Read(buf)
		switch {
		case err == nil && a.health.Expect == "":
			return "answered " + size(n), nil
		case err == nil && bytes.Contains(buf[:n], []byte(a.health.Expect)):
			return "answered as expected", nil
		case err == nil:
			wrong = a.unexpected(buf[:n], a.expected()) // another datagram may still arrive
		case timedOut(err) && wrong != nil:
			return "", wrong
		case timedOut(err) && a.health.Expect == "":
			return fmt.Sprintf("sent; no ICMP error arrived within %s", a.timeout()), nil
		case timedOut(err):
			return "", fmt.Errorf("no answer within %s", a.timeout())
		default:
			return "", a.deliveryError(err)
		}
	}
}

// deliveryError explains why a datagram was not delivered. EACCES means that a router rejected it.
// If this host's own routes prohibit the target, opening the socket already fails.
func (a *attempt) deliveryError(err error) error {
	switch {
	case sockerr.Is(err, syscall.EACCES):
		return errProhibited
	case sockerr.Is(err, syscall.ECONNREFUSED):
		return errPortUnreachable
	case sockerr.Is(err, syscall.EMSGSIZE):
		return localf("sending %s: %w", size(len(a.health.Send)), bare(err))
	}
	return a.connectError(err)
}
