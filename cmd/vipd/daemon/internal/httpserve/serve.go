package httpserve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds limits the resources that clients of a listener can use. Anyone on the host can connect to
// api.http, and each connection uses a file descriptor that a service's client might need.
type Bounds struct {
	// Connections is the maximum number of open connections. Additional connections wait in the
	// kernel's queue.
	Connections int
	// header limits the time for reading a request's header, and request for the whole request.
	header, request time.Duration
	// write is the timeout of a write to a client that does not read. An answer that follows
	// changes has no other limit.
	write time.Duration
	// idle is the maximum time between two requests on a connection.
	idle time.Duration
}

// Default returns the Bounds of a listener with few clients.
func Default() Bounds {
	return Bounds{Connections: 64, header: 5 * time.Second, request: 10 * time.Second, write: 30 * time.Second, idle: 30 * time.Second}
}

// maxBody is the maximum size of a request's body, in bytes.
const maxBody = 1 << 20

// Serve serves HTTP on l with the handler h until ctx is done, within the limits of b. It returns
// an error if l can no longer be served.
func Serve(ctx context.Context, l net.Listener, h http.Handler, b Bounds) error {
	slots := make(chan struct{}, b.Connections)
	server := &http.Server{
		Handler: b.handler(h, slots), ReadHeaderTimeout: b.header, ReadTimeout: b.request, IdleTimeout: b.idle,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withCaller,
	}
	down := make(chan struct{})
	stopping := context.AfterFunc(ctx, func() {
		defer close(down)
		limit, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(limit) != nil {
			_ = server.Close() // aborts answers that follow changes
		}
	})
	err := server.Serve(&boundedListener{l, ctx, slots})
	if stopping() {
		return fmt.Errorf("serving on %s: %w", l.Addr(), err)
	}
	<-down
	return nil
}

// handler limits how long h waits for its client. The limits apply to the body, which is read
// before h is called, and to each write of the answer.
func (b Bounds) handler(h http.Handler, slots chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if len(slots) > cap(slots)/2 { // idle clients must not lock out other clients
			w.Header().Set("Connection", "close")
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			Refuse(w, http.StatusBadRequest, fmt.Errorf("reading the body of the request: %w", err))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		_ = control.SetReadDeadline(time.Time{}) // the request is complete, and a deadline would cancel a slow handler
		h.ServeHTTP(&boundedWriter{w, control, b.write}, r)
	})
}

// boundedWriter aborts an answer if the client does not read.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
}

func (w *boundedWriter) Write(b []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.limit)) // fails only if the connection is closed, and then the write also fails
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find the method that flushes.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// boundedListener accepts connections while there is a free slot.
type boundedListener struct {
	net.Listener
	ctx   context.Context
	slots chan struct{}
}

func (l *boundedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &slotted{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

// slotted is a connection that frees its slot when it is closed.
type slotted struct {
	net.Conn
	free func()
}

func (c *slotted) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// CloseWrite lets http.Server end an answer before it closes the connection. Otherwise a reset
// might overtake the answer.
func (c *slotted) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// LimitFollowers returns a handler that uses at most half of b's connections for requests that
// follow changes (?watch, ?follow). The other half is for all other requests.
func LimitFollowers(h http.Handler, b Bounds) http.Handler {
	following := make(chan struct{}, b.Connections/2)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("watch") != "" || q.Get("follow") != "" {
			select {
			case following <- struct{}{}:
				defer func() { <-following }()
			default:
				Refuse(w, http.StatusServiceUnavailable, fmt.Errorf("%d commands already follow this vipd (get -w, status -w, events -f): end one of them", cap(following)))
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}
