package accesslog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// Options configures a Log.
type Options struct {
	// Default is the destination of services that set none, in the form of Service.LogsTo.
	Default string
	// Services returns the services, and a channel that is closed when they change.
	Services func() (snap.Map[balancer.Name, *balancer.Service], <-chan struct{})
	// Log is vipd's own log.
	Log *slog.Logger
	// Follow reports connections like dataplane.FollowsConnections.
	Follow func(ctx context.Context, tell func(began bool, c *dataplane.Connection), lost func(ends uint64)) error
}

// Log writes a line for each connection that ends. Its methods are safe for concurrent use.
type Log struct {
	o    Options
	lost atomic.Uint64
	// own maps each service that sets a destination to the queue of that destination. A nil queue
	// discards lines. A removed service stays in the map, because its connections may still drain.
	own sync.Map // balancer.Name to chan line
	// queues maps each destination to its queue. A queue is created for the first service that
	// names the destination. Run owns the queues and closes them when it returns.
	queues  map[string]chan line
	usual   chan line     // queue of Default; nil discards lines
	files   sync.Map      // maps a path to the file that is written
	wanted  chan struct{} // closed when the first service has a destination
	writing sync.WaitGroup
}

// line is a connection and the time at which it ended.
type line struct {
	dataplane.Connection
	at time.Time
}

// queued is the maximum number of lines in a queue (about 3 MiB). Additional lines are dropped.
const queued = 10_000

// New returns a log that writes nothing until Run is called.
func New(o Options) *Log {
	return &Log{o: o, queues: map[string]chan line{}, wanted: make(chan struct{})}
}

// Lost returns the number of lines that were not written because the disk was too slow or failed.
func (l *Log) Lost() uint64 { return l.lost.Load() }

// Problems reports the destination files that can't be written. A file is a destination as long as
// the default or an existing service names it.
func (l *Log) Problems() (all []balancer.Problem) {
	for path, f := range l.files.Range {
		err := f.(*file).wrong()
		if err == nil || !l.named(path.(string)) {
			continue
		}
		all = append(all, balancer.Problem{
			Severity: balancer.SeverityWarning, Field: "access_log", Text: fmt.Sprintf("connections are not logged because %s can't be written: %v", path, err),
		})
	}
	slices.SortFunc(all, func(a, b balancer.Problem) int { return strings.Compare(a.Text, b.Text) })
	return all
}

// named reports whether the file at path is the default destination or the destination of an
// existing service.
func (l *Log) named(path string) bool {
	if filepath.Clean(l.o.Default) == path {
		return true
	}
	services, _ := l.o.Services()
	for _, s := range services.All() {
		if to, ok := s.LogsTo(); ok && filepath.Clean(to) == path {
			return true
		}
	}
	return false
}

const (
	// again is the pause before the next attempt to follow connections.
	again = time.Minute
	// parting limits how long writing the last lines may take when vipd exits.
	parting = 2 * time.Second
)

// Run writes lines until ctx is done, and then writes the queued lines. It follows connections only
// after the first service has a destination.
func (l *Log) Run(ctx context.Context) {
	l.usual = l.queue(l.o.Default)
	var following sync.WaitGroup
	following.Go(func() { l.follow(ctx) })
	l.assign(ctx)
	following.Wait()
	for _, queue := range l.queues {
		close(queue)
	}
	written := make(chan struct{})
	go func() { defer close(written); l.writing.Wait() }() // Run does not wait for a disk that hangs
	select {
	case <-written:
	case <-time.After(parting):
		l.o.Log.Warn("the access log's disk accepts no writes")
	}
}

// assign keeps own up to date until ctx is done.
func (l *Log) assign(ctx context.Context) {
	var known snap.Map[balancer.Name, *balancer.Service]
	begin := sync.OnceFunc(func() { close(l.wanted) })
	for {
		services, changed := l.o.Services()
		for name, c := range snap.Diff(known, services) {
			if c.New == nil {
				continue
			}
			if to, ok := c.New.LogsTo(); ok {
				l.own.Store(name, l.queue(to))
			} else {
				l.own.Delete(name)
			}
		}
		known = services
		if len(l.queues) > 0 {
			begin()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// queue returns the queue of a destination, or nil if its lines are discarded.
func (l *Log) queue(to string) chan line {
	if to == "" {
		return nil
	}
	if to != balancer.JournalLog {
		to = filepath.Clean(to)
	}
	queue, there := l.queues[to]
	if !there {
		queue = make(chan line, queued)
		l.queues[to] = queue
		l.writing.Go(func() { l.write(to, queue) })
	}
	return queue
}

// follow receives connections until ctx is done.
func (l *Log) follow(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-l.wanted:
	}
	for ctx.Err() == nil {
		if err := l.o.Follow(ctx, l.record, func(ends uint64) { l.lost.Add(ends) }); err != nil {
			l.o.Log.Warn("connections can't be followed, so they are missing from the access log; vipd keeps trying", "err", err)
		}
		wake.Sleep(ctx, again)
	}
}

// record queues a connection's line. It never blocks.
func (l *Log) record(began bool, c *dataplane.Connection) {
	if began {
		return
	}
	to := l.usual
	if own, ok := l.own.Load(c.Service); ok {
		to = own.(chan line)
	}
	if to == nil {
		return
	}
	select {
	case to <- line{*c, time.Now()}:
	default:
		l.lost.Add(1)
	}
}

// write writes lines until the queue is closed.
func (l *Log) write(path string, queue chan line) {
	if path == balancer.JournalLog {
		for n := range queue {
			l.o.Log.LogAttrs(context.Background(), slog.LevelInfo, "connection", n.attrs()...)
		}
		return
	}
	f := &file{path: path}
	l.files.Store(path, f)
	defer l.files.Delete(path)
	defer f.close()
	out := bufio.NewWriterSize(f, 64<<10)
	handler := handlerFor(path, out)
	pending := uint64(0)
	idle := time.NewTicker(idleTime)
	defer idle.Stop()
	for {
		var n line
		more := true
		select {
		case n, more = <-queue:
		case <-idle.C:
			f.rest()
			continue
		}
		if !more {
			return
		}
		r := slog.NewRecord(n.at, slog.LevelInfo, "", 0)
		r.AddAttrs(n.attrs()...)
		_ = handler.Handle(context.Background(), r) // the writer keeps the error
		if pending++; len(queue) > 0 && pending < 1000 {
			continue
		}
		if err := out.Flush(); err == nil {
			f.failed.Store(nil)
		} else {
			l.lost.Add(pending)
			out.Reset(f)
			f.torn = f.half
			if known := f.failed.Swap(&err); known == nil {
				l.o.Log.Warn("the access log can't be written; lost lines are counted in vipd_access_log_lost_total", "err", err)
			}
		}
		pending = 0
	}
}

// handlerFor returns a handler that formats lines for the file at path. It omits the level and the
// message, which are the same in all lines.
func handlerFor(path string, out *bufio.Writer) slog.Handler {
	o := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey || a.Key == slog.MessageKey {
			return slog.Attr{}
		}
		return a
	}}
	if strings.HasSuffix(path, ".json") {
		return slog.NewJSONHandler(out, o)
	}
	return slog.NewTextHandler(out, o)
}

// attrs returns the fields of a line.
func (n *line) attrs() []slog.Attr {
	all := []slog.Attr{
		slog.String("service", string(n.Service)), slog.String("client", n.Client.String()), slog.String("frontend", n.Frontend.String()),
		slog.String("endpoint", ""), slog.Uint64("bytes_in", n.In), slog.Uint64("bytes_out", n.Out),
	}
	if n.Backend.IsValid() {
		all[3] = slog.String("endpoint", n.Backend.String())
	}
	if !n.Since.IsZero() {
		all = append(all, slog.Float64("seconds", n.at.Sub(n.Since).Seconds()))
	}
	if n.End != "" {
		all = append(all, slog.Int("retries", n.Retries), slog.String("end", n.End))
	}
	return all
}

// file is a log file. It is opened when needed, and reopened if its name refers to another file.
type file struct {
	path   string
	open   *os.File
	looked time.Time // when the name was last looked up, at most a second before the last write
	half   bool      // set if the last write ended in the middle of a line
	torn   bool      // set if the rest of that line was lost

	failed atomic.Pointer[error]     // error of the last write, or nil
	since  atomic.Pointer[time.Time] // start of the current write, or nil
}

// silence is the maximum duration of a write before it is reported as a problem.
const silence = 5 * time.Second

// wrong returns the reason why lines can't be written, or nil. It is safe for concurrent use.
func (f *file) wrong() error {
	if since := f.since.Load(); since != nil && time.Since(*since) >= silence {
		return fmt.Errorf("the log destination has accepted no lines for %s", silence)
	}
	if err := f.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// idleTime is the time without a write after which a file is closed. If a removed file stayed open,
// it would continue to occupy disk space.
const idleTime = 10 * time.Second

// rest closes the file if it is idle. If the last line is torn, the file stays open, because the
// next write must first end that line.
func (f *file) rest() {
	if !f.torn && time.Since(f.looked) >= idleTime {
		f.close()
	}
}

// lookEvery is the interval at which the file's name is checked.
const lookEvery = time.Second

// Write implements io.Writer.
func (f *file) Write(b []byte) (int, error) {
	began := time.Now()
	f.since.Store(&began)
	defer f.since.Store(nil)
	if f.open != nil && time.Since(f.looked) > lookEvery && !f.named() {
		f.close()
	}
	if f.open == nil {
		opened, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
		if err != nil {
			return 0, err
		}
		f.open = opened
		f.looked = time.Now()
		f.half = false
		f.torn = false
	}
	if f.torn {
		if _, err := f.open.WriteString("\n"); err != nil {
			return 0, err
		}
		f.half, f.torn = false, false
	}
	n, err := f.open.Write(b)
	if n > 0 {
		f.half = b[n-1] != '\n'
	}
	return n, err
}

// named reports whether the file's name still refers to the open file.
func (f *file) named() bool {
	f.looked = time.Now()
	info, err := os.Stat(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	was, err2 := f.open.Stat()
	return err != nil || err2 != nil || os.SameFile(info, was)
}

func (f *file) close() {
	if f.open != nil {
		_ = f.open.Close() // the kernel already has all written lines
		f.open = nil
	}
}
