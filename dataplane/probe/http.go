package probe

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"vipd/balancer"
)

// maxHeader is the maximum length of an answer's status line and headers, in bytes.
const maxHeader = 64 << 10

// http sends one request and checks the answer's status and the start of its body.
func (a *attempt) http(ctx context.Context) (string, error) {
	conn, err := a.connect(ctx, "tcp")
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	abort(conn)
	if a.health.Type == balancer.HTTPSHealth {
		secured, err := a.secure(ctx, conn, "http/1.1")
		if err != nil {
			return "", err
		}
		conn = secured // closed without a close notice, because no peer waits for one
	}
	conn = a.record(conn)
	req, err := a.request()
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	if err := req.Write(&text); err != nil {
		return "", localf("writing the request: %w", err)
	}
	if _, err := conn.Write(text.Bytes()); err != nil && !resets(err) {
		return "", a.sendError(err)
	}
	return a.response(conn, req)
}

func (a *attempt) request() (*http.Request, error) {
	h := a.health
	host := cmp.Or(h.Host, a.at.String())
	where, err := url.ParseRequestURI(h.Path)
	if err != nil {
		return nil, localf("path %q is not valid: %w", h.Path, err)
	}
	where.Scheme, where.Host = "http", host
	req := &http.Request{
		Method: h.Method, URL: where, Host: host, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": {"vipd-health"}, "Accept": {"*/*"}}, Close: true,
	}
	for name, value := range h.Headers {
		req.Header.Set(name, value)
	}
	return req, nil
}

// response reads the answer, compares it with the definition, and returns the text of the result.
func (a *attempt) response(conn net.Conn, req *http.Request) (string, error) {
	counted := &counter{from: conn, left: maxHeader}
	r := bufio.NewReader(counted)
	resp, err := http.ReadResponse(r, req)
	for err == nil && resp.StatusCode >= 100 && resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
		resp, err = http.ReadResponse(r, req) // skips answers such as 100 Continue before the final answer
	}
	if err != nil {
		return "", a.statusError(err, counted)
	}
	status := strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode)
	if in, _ := balancer.StatusIn(a.health.Status, resp.StatusCode); !in {
		return "", fmt.Errorf("answered %s, not %s", strings.TrimSpace(status), a.health.Status)
	}
	counted.left = 2 * maxAnswer // includes the chunk headers
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if endsWithConnection(resp) && resets(err) {
		err = nil // the peer closed the connection without reading the whole request
	}
	whole := err == nil && len(body) < maxAnswer
	if want := a.health.Expect; want != "" && !bytes.Contains(body, []byte(want)) && (err == nil || errors.Is(err, errTooMuch)) {
		if !whole {
			return "", endless(a.expected())
		}
		return "", fmt.Errorf("answered %s, without the expected %s", status, excerpt([]byte(want)))
	}
	switch {
	case err != nil && !errors.Is(err, errTooMuch):
		return "", a.bodyError(err, status, len(body))
	case whole:
		return "answered " + status, nil
	}
	return fmt.Sprintf("answered %s with a body of %d KiB or more", status, maxAnswer>>10), nil
}

// endsWithConnection reports whether the end of the connection marks the end of the response body.
func endsWithConnection(resp *http.Response) bool {
	return resp.ContentLength < 0 && len(resp.TransferEncoding) == 0
}

func (a *attempt) statusError(err error, c *counter) error {
	switch {
	case errors.Is(c.err, errTooMuch):
		return fmt.Errorf("the answer's headers are longer than %d KiB", maxHeader>>10)
	case !bytes.HasPrefix(c.first, []byte("HTTP/")[:min(len(c.first), len("HTTP/"))]):
		return fmt.Errorf("answered %s, which is not HTTP", a.quote(c.first))
	case c.err != nil:
		err = c.err
	}
	return a.readError(err, c.read, "the answer")
}

// bodyError explains why the body could not be read completely. got is the number of bytes that
// were read.
func (a *attempt) bodyError(err error, status string, got int) error {
	switch {
	case timedOut(err):
		return fmt.Errorf("answered %s, but the body was not complete within %s: only %s arrived", status, a.timeout(), size(got))
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("answered %s, but the body is truncated: the connection was closed after %s", status, size(got))
	}
	return fmt.Errorf("answered %s, but the body ended after %s: %w", status, size(got), bare(err))
}

var errTooMuch = errors.New("the answer is too long")

// counter counts and limits the bytes that are read from a reader, and retains the first 100.
type counter struct {
	from  io.Reader
	left  int
	read  int
	first []byte
	err   error // the error that ended reading
}

func (c *counter) Read(p []byte) (int, error) {
	if c.left <= 0 {
		c.err = errTooMuch
		return 0, errTooMuch
	}
	n, err := c.from.Read(p[:min(len(p), c.left)])
	c.left -= n
	c.read += n
	if room := 100 - len(c.first); room > 0 {
		c.first = append(c.first, p[:min(n, room)]...)
	}
	if err != nil {
		c.err = err
	}
	return n, err
}
