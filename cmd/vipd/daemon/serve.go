package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/lockfile"
	"vipd/dataplane/userspace"
	"vipd/store/etcd"
)

// socketGroup may use the API's socket, if the group exists.
const socketGroup = "vipd"

// fileProblems are what is wrong with vipd's files, and with the certificate by which etcd knows it.
func (d *Daemon) fileProblems() []balancer.Problem {
	all := d.lostFiles()
	if text := etcd.Config(d.config.Etcd).Expiry(time.Now()); text != "" && d.fleet != nil {
		at := balancer.Origin{File: d.ConfigFile}
		all = append(all, balancer.Problem{Severity: balancer.SeverityWarning, Origin: at, Field: "etcd.cert_file", Text: text})
	}
	if group := d.config.API.ChangeGroup; group != "" {
		if _, err := user.LookupGroup(group); err != nil {
			all = append(all, balancer.Problem{Severity: balancer.SeverityError, Origin: balancer.Origin{File: d.ConfigFile}, Field: "api.change_group",
				Text: fmt.Sprintf("this host has no group %q, so only root may change vipd: create it with groupadd %[1]s, or correct the name", group)})
		}
	}
	return all
}

// lostFiles says that vipd's files were removed under it. What they said of the kernel is written anew once, so that a restart finds it.
func (d *Daemon) lostFiles() []balancer.Problem {
	_, err := os.Stat(d.config.API.Socket)
	lost := d.socket != nil && errors.Is(err, fs.ErrNotExist) || lockfile.Lost(d.lock)
	if lost && !d.filesLost {
		d.engine.Resync()
	}
	if d.filesLost = lost; !lost {
		return nil
	}
	return []balancer.Problem{{Severity: balancer.SeverityError, Field: "run_dir", Text: fmt.Sprintf(
		"files of the running vipd were removed from %s or %s: vipctl does not reach it; restart vipd (systemctl restart vipd)",
		d.config.RunDir, filepath.Dir(d.config.API.Socket))}}
}

// makeFolder makes a folder and those around it, unless they are there, that all users may enter, whatever the umask: the socket's
// group is among them.
func makeFolder(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if around := filepath.Dir(path); around != path {
		if err := makeFolder(around); err != nil {
			return err
		}
	}
	if os.Mkdir(path, 0o755) != nil {
		return os.MkdirAll(path, 0o755) // nil where another process has made it just now
	}
	return os.Chmod(path, 0o755)
}

// listenSocket opens the API's socket. One that is there and answers belongs to another vipd, of another run_dir; one
// that does not is left over from a dead one.
func listenSocket(path string, log *slog.Logger) (net.Listener, error) {
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("making the folder of api.socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("api.socket %s is in the way: it is no socket; remove it or choose another path", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("another vipd answers at api.socket %s: stop it, or give this one another socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing the socket of an earlier vipd: %w", err)
	}
	l, err := api.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("opening api.socket: %w", err)
	}
	if g, err := user.LookupGroup(socketGroup); err == nil {
		if gid, err := strconv.Atoi(g.Gid); err == nil {
			if err := os.Chown(path, -1, gid); err != nil {
				log.Warn("giving the API's socket to its group", "group", socketGroup, "err", err)
			}
		}
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("opening api.socket to its group: %w", err), l.Close())
	}
	return l, nil
}

// bounds limit what clients of a listener can hold. Anyone on the host can connect to api.http, and each connection takes a
// descriptor that a client of a service could have.
type bounds struct {
	// connections is how many there are at once; more wait in the kernel's queue.
	connections int
	// header and request are how long a client may take to send the header, and all, of a request.
	header, request time.Duration
	// write is how long one write of an answer may wait for the client to read. An answer that is followed has no other
	// bound.
	write time.Duration
	// idle is how long a connection may wait for its next request.
	idle time.Duration
}

// defaultBounds are those of the API's socket, and of api.http where descriptors are few.
var defaultBounds = bounds{
	connections: 64, header: 5 * time.Second, request: 10 * time.Second, write: 30 * time.Second, idle: 30 * time.Second,
}

// webBounds are those of api.http, whose status page many may follow: a quarter of the descriptors that userspace mode leaves, 256 of
// 1024 where the process may open 4096. Clients there can't take those of health checks and files, or of services.
func webBounds() bounds {
	b := defaultBounds
	b.connections = max(b.connections, userspace.Reserve()/4)
	return b
}

// mostBody is the size of the largest body of a request.
const mostBody = 1 << 20

// serve answers HTTP on l until ctx ends.
func serve(ctx context.Context, l net.Listener, h http.Handler, b bounds) error {
	slots := make(chan struct{}, b.connections)
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
			_ = server.Close() // answers that don't end by themselves are cut
		}
	})
	err := server.Serve(&boundedListener{l, ctx, slots})
	if stopping() {
		return fmt.Errorf("serving on %s: %w", l.Addr(), err)
	}
	<-down
	return nil
}

// handler bounds how long h waits for its client: for the body before h is called, and then for each write.
func (b bounds) handler(h http.Handler, slots chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if len(slots) > cap(slots)/2 { // clients that ask seldom must not keep others out between their requests
			w.Header().Set("Connection", "close")
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
		if err != nil {
			refuseCall(w, http.StatusBadRequest, fmt.Errorf("reading the body of the request: %w", err))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		_ = control.SetReadDeadline(time.Time{}) // the request is there; its end would cancel a handler that works for longer
		h.ServeHTTP(&boundedWriter{w, control, b.write}, r)
	})
}

// boundedWriter ends an answer whose client does not read.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
}

func (w *boundedWriter) Write(b []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.limit)) // fails only where the connection is closed, as the write does then
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find what can flush.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// boundedListener accepts while there is a free slot.
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

// CloseWrite lets http.Server end an answer before the connection, so that a reset does not overtake it.
func (c *slotted) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// fewFollowers refuses to follow anything for more than half of the connections: the other half is for callers who ask
// once.
func fewFollowers(h http.Handler, b bounds) http.Handler {
	following := make(chan struct{}, b.connections/2)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("watch") != "" || q.Get("follow") != "" {
			select {
			case following <- struct{}{}:
				defer func() { <-following }()
			default:
				refuseCall(w, http.StatusServiceUnavailable, fmt.Errorf("%d callers follow this vipd already (get -w, status -w, events -f): end one of them", cap(following)))
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}
