package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
	"vipd/cmd/internal/tracing"
)

const (
	// patience limits the pauses in an answer that the daemon gives from its current state.
	patience = 10 * time.Second
	// workPatience limits the pauses while the daemon changes its state, or compares it with the
	// kernel's state. A change reads files and waits up to 5 s for the result.
	workPatience = 60 * time.Second
)

// Client is a client of the daemon at a Unix socket. A request fails if no part of the answer
// arrives within 10 seconds, or within 60 seconds for a change. Health checks, whose timeout the
// service defines, and followed answers last until their contexts are done.
type Client struct {
	// Absent returns the reason why the socket is missing, with the remedy, or "" if the reason is
	// unknown. It may be nil.
	Absent func() string

	socket   string
	http     *http.Client
	patience time.Duration
	work     time.Duration // patience for changes
}

// NewClient returns a client of the daemon at socket. It does not connect yet.
func NewClient(socket string) *Client {
	return &Client{socket: socket, http: &http.Client{Transport: over(socket)}, patience: patience, work: workPatience}
}

func over(socket string) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status requests the node's status.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	return s, c.call(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Services requests all services, sorted by name.
func (c *Client) Services(ctx context.Context) (s []Service, err error) {
	return s, c.call(ctx, http.MethodGet, "/v1/services", nil, &s)
}

// Endpoints requests all endpoints, sorted by service and address.
func (c *Client) Endpoints(ctx context.Context) (e []Endpoint, err error) {
	return e, c.call(ctx, http.MethodGet, "/v1/endpoints", nil, &e)
}

// Frontends requests all frontends, sorted by key.
func (c *Client) Frontends(ctx context.Context) (f []Frontend, err error) {
	return f, c.call(ctx, http.MethodGet, "/v1/frontends", nil, &f)
}

// Explain requests a description of the path that a connection from client takes to a frontend. The
// port of client may be 0. If live is true, the daemon also opens a connection.
func (c *Client) Explain(ctx context.Context, client netip.AddrPort, to balancer.Key, live bool) (e Explanation, err error) {
	q := url.Values{"client": {placeText(client)}, "to": {to.String()}}
	if live {
		q.Set("live", "1")
	}
	return e, c.call(ctx, http.MethodGet, "/v1/explain?"+q.Encode(), nil, &e)
}

// Diff makes the daemon compare its state with the kernel's state, and returns the differences.
func (c *Client) Diff(ctx context.Context) (d []Difference, err error) {
	return d, c.within(ctx, c.work, http.MethodGet, "/v1/diff", nil, &d)
}

// Reload makes the daemon read its configuration again. by is the operator, or "" if unknown.
func (c *Client) Reload(ctx context.Context, by string, flags ...ReloadFlag) (r Reload, err error) {
	q := url.Values{"by": {by}}
	for _, f := range flags {
		q.Set(string(f), "true")
	}
	return r, c.call(ctx, http.MethodPost, "/v1/reload?"+q.Encode(), nil, &r)
}

// Overrides requests the manual overrides.
func (c *Client) Overrides(ctx context.Context) (r OverrideResult, err error) {
	return r, c.call(ctx, http.MethodGet, "/v1/overrides", nil, &r)
}

// Override changes endpoints' overrides.
func (c *Client) Override(ctx context.Context, q OverrideRequest) (r OverrideResult, err error) {
	return r, c.call(ctx, http.MethodPost, "/v1/overrides", q, &r)
}

// Check runs one endpoint's health check once.
func (c *Client) Check(ctx context.Context, q CheckRequest) (r CheckResult, err error) {
	return r, c.within(ctx, 0, http.MethodPost, "/v1/check", q, &r)
}

// CheckDirect tests the paths of services with forward = "dr" from the daemon's host.
func (c *Client) CheckDirect(ctx context.Context, q DirectRequest) (paths []DirectPath, err error) {
	return paths, c.within(ctx, 0, http.MethodPost, "/v1/check-direct", q, &paths)
}

// EventsQuery selects events.
type EventsQuery struct {
	// Since is the number of the last known event, or 0.
	Since uint64
	// Service and Kind select events by service and kind. An empty string selects all.
	Service, Kind string
	// Follow requests future events as well.
	Follow bool
}

// Events requests events, and calls the function each once per page. It returns after the last
// page, or earlier if the function returns an error or ctx is done.
func (c *Client) Events(ctx context.Context, q EventsQuery, each func(EventPage) error) error {
	values := url.Values{"since": {strconv.FormatUint(q.Since, 10)}, "service": {q.Service}, "kind": {q.Kind}}
	if q.Follow {
		values.Set("follow", "1")
	}
	path := "/v1/events?" + values.Encode()
	if q.Follow {
		return follow(ctx, c, nil, "following events", path, each)
	}
	ctx, s := c.bound(ctx, c.patience)
	defer s.end()
	return follow(ctx, c, s, "reading events", path, each)
}

// Watch requests services, endpoints, frontends or the status, and receives the answer again after
// each change. It calls the function each once per answer, until the function returns an error or
// ctx is done.
func (c *Client) Watch(ctx context.Context, what string, each func(json.RawMessage) error) error {
	return follow(ctx, c, nil, "following "+what, "/v1/"+what+"?watch=1", each)
}

// follow calls the function each once per part of an answer. It returns when the answer ends, the
// function returns an error, or ctx is done. If s is nil, the answer should be endless. If it ends
// nevertheless, follow returns an error, because vipd has stopped or is restarting.
func follow[T any](ctx context.Context, c *Client, s *silence, doing, path string, each func(T) error) error {
	response, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	d := json.NewDecoder(s.restartingReader(response.Body))
	for {
		var part T
		err := d.Decode(&part)
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err == io.EOF && s != nil:
			return nil
		case err != nil:
			return fmt.Errorf("%s: vipd at %s cut the answer short", doing, c.socket)
		}
		if err := each(part); err != nil {
			return err
		}
	}
}

// call sends a request. The daemon answers a GET from its current state. A request with another
// method makes a change first, so it has a longer timeout.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	if method == http.MethodGet {
		return c.within(ctx, c.patience, method, path, in, out)
	}
	return c.within(ctx, c.work, method, path, in, out)
}

// within sends a request, and decodes its answer. It fails if no part of the answer arrives within
// patience. If patience is 0, there is no limit.
func (c *Client) within(ctx context.Context, patience time.Duration, method, path string, in, out any) error {
	var s *silence
	if patience > 0 {
		ctx, s = c.bound(ctx, patience)
		defer s.end()
	}
	response, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	err = json.NewDecoder(s.restartingReader(response.Body)).Decode(out)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("reading the answer from vipd at %s: %w", c.socket, err)
	}
	return nil
}

// Profile returns one of the daemon's net/http/pprof profiles, such as "goroutine?debug=2" or
// "heap".
func (c *Client) Profile(ctx context.Context, what string) ([]byte, error) {
	response, err := c.send(ctx, http.MethodGet, "/debug/pprof/"+what, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return io.ReadAll(response.Body)
}

// send sends a request. It returns an answer with status 200, whose body the caller must close, or
// an error.
func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("writing the request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://vipd"+path, body)
	if err != nil {
		return nil, err
	}
	if parent := tracing.Parent(ctx); parent != "" {
		request.Header.Set(tracing.Header, parent)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	var refusal Error
	if err := json.NewDecoder(response.Body).Decode(&refusal); err != nil || refusal.Message == "" {
		return nil, fmt.Errorf("vipd at %s answered %s", c.socket, response.Status)
	}
	return nil, errors.New(refusal.Message)
}

// explain returns an error about a daemon that can't be reached, with the remedy.
func (c *Client) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist):
		if c.Absent != nil {
			if known := c.Absent(); known != "" {
				return fmt.Errorf("no vipd answers at %s: %s", c.socket, known)
			}
		}
		return fmt.Errorf("no vipd answers at %s: the socket does not exist; start vipd, or set --socket to its socket", c.socket)
	case sockerr.Is(err, syscall.ECONNREFUSED):
		if info, err := os.Stat(c.socket); err == nil && info.Mode().Type() != fs.ModeSocket {
			return fmt.Errorf("no vipd answers at %s: it is not a socket; set --socket to vipd's socket", c.socket)
		}
		return fmt.Errorf("no vipd answers at %s: the socket exists, but nothing listens on it; start vipd", c.socket)
	case sockerr.Is(err, syscall.EINVAL):
		return fmt.Errorf("no vipd answers at %s: the path is too long for a socket; set --socket to vipd's socket", c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("you have no permission to use vipd's socket %s: %s", c.socket, permit(c.socket))
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err // omit the URL, which means nothing to users
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	return fmt.Errorf("querying vipd at %s: %v; vipd might be restarting: try again, or set --socket to its socket", c.socket, err)
}

// permit returns the remedy for a user who may not use the socket. It never recommends joining the
// group root.
func permit(socket string) string {
	if group := groupOf(socket); group != "" {
		return "use sudo, or join the socket's group " + group + " and log in again"
	}
	return "use sudo, or create the group vipd, join it, and restart vipd"
}

// errSilent means that a daemon accepted a request but did not answer in time.
var errSilent = errors.New("no answer in time")

// silence cancels a request if no part of its answer arrives within patience. A nil silence never
// cancels.
type silence struct {
	patience time.Duration
	timer    *time.Timer
	cancel   context.CancelCauseFunc
	body     io.Reader
}

// bound returns a context that is canceled when the daemon sends nothing for the duration patience.
// The caller must call the end method of the returned silence.
func (c *Client) bound(ctx context.Context, patience time.Duration) (context.Context, *silence) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("%w: vipd at %s has not answered for %s; vipd hangs, or this host is overloaded", errSilent, c.socket, patience))
	})
	return ctx, &silence{patience: patience, timer: timer, cancel: cancel}
}

// restartingReader returns a reader for the answer that restarts the timer at each read. From then
// on, patience limits the wait for each part of the answer.
func (s *silence) restartingReader(body io.Reader) io.Reader {
	if s == nil {
		return body
	}
	s.body = body
	return s
}

// Read reads the next part of the answer. The time between calls does not count as silence.
func (s *silence) Read(p []byte) (int, error) {
	s.timer.Reset(s.patience)
	defer s.timer.Stop()
	return s.body.Read(p)
}

func (s *silence) end() {
	s.timer.Stop()
	s.cancel(nil)
}
