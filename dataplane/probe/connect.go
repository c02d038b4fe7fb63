package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/balancer/lib/sockerr"
)

// connect opens a connection to the target. When ctx is canceled, reads and writes on it fail.
func (a *attempt) connect(ctx context.Context, network string) (net.Conn, error) {
	conn, err := a.dial(ctx, network)
	if err != nil {
		a.notes.note("could not connect to %s", a.at)
		if network == "tcp" && a.at.Addr().Is6() && sockerr.Is(err, syscall.EACCES) && !a.prohibited(ctx) {
			return nil, errProhibited
		}
		return nil, a.connectError(err)
	}
	a.notes.note("connected to %s from %s", conn.RemoteAddr(), conn.LocalAddr())
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)
	}
	a.interrupts = append(a.interrupts, context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }))
	if network == "udp" && a.header == localHeader(balancer.ProxyProtocolV2) {
		a.notes.note("sending the first datagram with a PROXY header that names no client")
		return &prefixed{conn, a.header}, nil
	}
	if network == "tcp" && a.header != "" {
		a.notes.note("sending a PROXY header that names no client")
		if _, err := io.WriteString(conn, a.header); err != nil && !resets(err) {
			_ = conn.Close()
			return nil, a.sendError(err)
		}
	}
	return conn, nil
}

// prefixed is a UDP socket that puts a header before its first datagram.
type prefixed struct {
	net.Conn
	header string
}

func (p *prefixed) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(append([]byte(p.header), b...))
	n, p.header = max(0, n-len(p.header)), ""
	return n, err
}

// localHeader returns a PROXY header for a connection without a client. It returns "" if endpoints
// do not expect a header.
func localHeader(version balancer.ProxyProtocol) string {
	switch version {
	case balancer.ProxyProtocolV1:
		return "PROXY UNKNOWN\r\n"
	case balancer.ProxyProtocolV2: // signature, version 2 with command LOCAL, unspecified family, no addresses
		return "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	}
	return ""
}

func (a *attempt) dial(ctx context.Context, network string) (net.Conn, error) {
	d := net.Dialer{Control: a.mark, KeepAlive: -1, FallbackDelay: -1}
	if s := a.health.Source; s.IsValid() && s.Is4() == a.at.Addr().Is4() {
		d.LocalAddr = &net.TCPAddr{IP: s.AsSlice(), Zone: s.Zone()}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: s.AsSlice(), Zone: s.Zone()}
		}
	}
	return d.DialContext(ctx, network, a.at.String())
}

// prohibited reports whether this host's own routes prohibit the target. It is called after a TCP
// connection failed with EACCES. With IPv6, the kernel also returns EACCES if a router reports that
// the target is prohibited. Connecting a UDP socket sends no packet, so no router can answer.
func (a *attempt) prohibited(ctx context.Context) bool {
	conn, err := a.dial(ctx, "udp")
	if err == nil {
		_ = conn.Close()
	}
	return sockerr.Is(err, syscall.EACCES)
}

var errProhibited = errors.New("host unreachable: a router or packet filter on the way rejects the packets")

// mark sets the firewall mark of a socket's packets if the definition has one.
func (a *attempt) mark(_, _ string, c syscall.RawConn) error {
	if a.health.Mark == 0 {
		return nil
	}
	var err error
	if controlled := c.Control(func(fd uintptr) { err = setMark(fd, a.health.Mark) }); controlled != nil {
		err = controlled
	}
	if err != nil {
		return localf("setting mark %d: %w", a.health.Mark, err)
	}
	return nil
}

func (a *attempt) connectError(err error) error {
	var local *localError
	switch {
	case errors.As(err, &local):
		return local
	case timedOut(err), sockerr.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("no answer to the connection attempt within %s: the host is down, or packets are dropped on the way", a.timeout())
	case sockerr.Is(err, syscall.ECONNREFUSED):
		return errors.New("connection refused: nothing listens there")
	case sockerr.Is(err, syscall.ECONNRESET):
		return errors.New("connection reset while connecting")
	case sockerr.Is(err, syscall.EHOSTUNREACH):
		return errors.New("host unreachable: no host answers at this address")
	case sockerr.Is(err, syscall.ENETUNREACH):
		return errors.New("network unreachable: this host has no route to it")
	case sockerr.Is(err, syscall.EADDRNOTAVAIL) && a.health.Source.IsValid():
		return localf("this host does not have the source address %s", a.health.Source)
	case sockerr.Is(err, syscall.EADDRNOTAVAIL):
		return localf("this host has no free source address or port for the connection")
	case sockerr.Exhausted(err):
		return localf("this host is out of resources: %w", bare(err))
	case sockerr.Is(err, syscall.EPERM, syscall.EACCES):
		return localf("this host's own packet filter or routes forbid the connection (%w)", errno(err))
	}
	return fmt.Errorf("connecting: %w", bare(err))
}

// errno returns the system error that err wraps, or err if there is none.
func errno(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

func timedOut(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || ok && n.Timeout()
}

// bare removes the operation and addresses from a network error, because the surrounding text
// already contains them.
func bare(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}

func (a *attempt) timeout() string { return decode.FormatDuration(a.health.Timeout) }

// readError explains why a connection ended before the expected data arrived. wanted names the data
// ("the answer"), and got is the number of bytes that arrived.
func (a *attempt) readError(err error, got int, wanted string) error {
	switch {
	case fromRemote(err): // with TLS 1.3, a server's refusal arrives only after the handshake
		return refusedTLS(err)
	case timedOut(err) && got == 0:
		return fmt.Errorf("connected, but no data arrived within %s", a.timeout())
	case timedOut(err):
		return fmt.Errorf("%s was not complete within %s: only %s arrived", wanted, a.timeout(), size(got))
	case sockerr.Is(err, syscall.ECONNRESET, syscall.EPIPE):
		return fmt.Errorf("connection reset after %s", size(got))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		if got == 0 {
			return errors.New("closed the connection without sending data")
		}
		return fmt.Errorf("%s is truncated: the connection was closed after %s", wanted, size(got))
	}
	return fmt.Errorf("reading %s: %w", wanted, bare(err))
}

func size(n int) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}

func (a *attempt) expected() string { return "the expected " + excerpt([]byte(a.health.Expect)) }

// unexpected returns the error for an answer that lacks the expected text. lacking describes the
// expected text.
func (a *attempt) unexpected(got []byte, lacking string) error {
	return fmt.Errorf("answered %s, without %s", a.quote(got), lacking)
}

// endless returns the error for an answer that exceeds maxAnswer without the expected text. lacking
// describes the expected text.
func endless(lacking string) error {
	return fmt.Errorf("the first %d KiB of the answer do not contain %s", maxAnswer>>10, lacking)
}

// quote returns the start of an answer as a quoted text, without secrets.
func (a *attempt) quote(answer []byte) string { return excerpt(withoutSecrets(answer, a.secrets)) }

// excerpt returns the start of data as a quoted text.
func excerpt(data []byte) string {
	const maxExcerpt = 60
	if len(data) > maxExcerpt {
		return fmt.Sprintf("%q...", data[:maxExcerpt])
	}
	return fmt.Sprintf("%q", data)
}

// firstLine returns the first line of text that is not empty, in readable form.
func firstLine(text string) string {
	for line := range strings.Lines(text) {
		if line = readable(line); line != "" {
			return line
		}
	}
	return ""
}

// readable returns a line without control characters and surrounding spaces, cut to 200 bytes.
func readable(line string) string { return cutTo(200, strings.TrimSpace(strings.Map(printable, line))) }

// cutTo returns text, cut to at most limit bytes, with spaces instead of unprintable characters.
func cutTo(limit int, text string) string {
	text = strings.Map(printable, text)
	return strings.ToValidUTF8(text[:min(limit, len(text))], "?")
}

// printable replaces characters that are not printable with spaces. Besides control characters,
// these are invisible characters that can reorder or hide the text around them.
func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return ' '
	}
	return r
}

// abort makes closing a TCP connection send a reset, so no socket stays in TIME_WAIT. Otherwise,
// with thousands of checks per second, hundreds of thousands of sockets would accumulate.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
}
