package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
)

// errCut means that this host ended the connection.
var errCut = errors.New("the connection was cut")

// attempt is the context of a dial. A connection reuses it for each dial. It has a deadline and can
// be abandoned, but needs no timer, channel or goroutine, unlike a context of package context.
type attempt struct {
	deadline  time.Time
	abandoned atomic.Bool

	mu   sync.Mutex // guards stop
	stop func()     // interrupts the dial
}

// never is the result of Done. The end is reported by AfterFunc, which package context prefers.
var never = make(chan struct{})

func (a *attempt) begin(patience time.Duration) {
	a.deadline = time.Now().Add(patience)
	a.abandoned.Store(false)
}

// abandon ends the current dial.
func (a *attempt) abandon() {
	a.abandoned.Store(true)
	a.mu.Lock()
	stop := a.stop
	a.stop = nil
	a.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// AfterFunc calls f when the attempt is abandoned.
func (a *attempt) AfterFunc(f func()) func() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.abandoned.Load() {
		go f() // the caller holds a lock that f needs
		return func() bool { return false }
	}
	a.stop = f
	return a.forget
}

func (a *attempt) forget() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.stop != nil
	a.stop = nil
	return was
}

func (a *attempt) Deadline() (time.Time, bool) { return a.deadline, true }
func (a *attempt) Done() <-chan struct{}       { return never }
func (a *attempt) Value(any) any               { return nil }

func (a *attempt) Err() error {
	if a.abandoned.Load() {
		return context.Canceled
	}
	return nil
}

// dial opens a connection to b within the connect timeout. While the process has no free
// descriptors it waits, because that is not the backend's fault, and to the client it looks like a
// slow backend.
func (c *conn) dial(b *backend) (*net.TCPConn, error) {
	to, text := c.f.target(b.addr, c.to.Port()), b.text
	if to != b.addr {
		text = to.String()
	}
	if c.f.d.chains.leadBack(c.f.key, to) {
		return nil, errLoop
	}
	dialer := net.Dialer{KeepAliveConfig: keepAlive, FallbackDelay: -1}
	dialer.SetMultipathTCP(false)
	if mss := c.f.conf.Load().MSS; mss > 0 {
		dialer.Control = func(_, _ string, raw syscall.RawConn) error {
			return control(raw, func(fd uintptr) error { return announce(fd, mss) })
		}
	}
	wait := backoff{}
	for {
		server, err := dialer.DialContext(&c.attempt, "tcp", text)
		if err == nil {
			return server.(*net.TCPConn), nil
		}
		if c.attempt.abandoned.Load() {
			return nil, context.Canceled
		}
		if !sockerr.Exhausted(err) || !wait.sleep(c.f.d.ctx.Done()) || time.Now().After(c.attempt.deadline) {
			return nil, err
		}
	}
}

// judge handles a failed attempt. A nil error means that the backend is not at fault.
func (f *frontend) judge(b *backend, err error) {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
	case sockerr.Is(err, syscall.EADDRNOTAVAIL, syscall.EAGAIN): // UDP reports EAGAIN
		f.d.ports.note()
		f.conf.Load().counter.failures.Add(1)
		f.d.seldom("no local port is left for connections to a backend: too many connections to it, open or closed a moment ago "+
			"(net.ipv4.ip_local_port_range bounds them)", "frontend", f.key, "backend", b.addr)
	case sockerr.Exhausted(err):
		f.d.budget.shortage.note()
		f.d.seldom("no descriptor is left for a connection to a backend", "frontend", f.key, "backend", b.addr)
	default:
		b.failures.Add(1)
		f.conf.Load().counter.failures.Add(1)
		if f.d.told != nil { // before b rests, so every later success is reported
			f.d.told(b.target(), err)
		}
		if b.failed(f.d.now()) {
			f.d.log.Warn("a backend does not take connections; others take its share", "frontend", f.key, "backend", b.addr, "err", err)
		}
	}
}

// lacks returns the exhausted resource that clients wait for, with advice, or "".
func (d *Dataplane) lacks() string {
	lacks := d.budget.lacks()
	if d.ports.isRecent() {
		const text = "clients are reset because no local port is left for connections to an endpoint: " +
			"widen net.ipv4.ip_local_port_range, or add endpoints; each connection keeps its port for a minute after its end"
		lacks = strings.TrimPrefix(lacks+"; "+text, "; ")
	}
	return lacks
}

// praise records that b accepts connections, or answers. It costs one comparison while the backend
// has no failures.
func (f *frontend) praise(b *backend) {
	if !b.answered() {
		return
	}
	f.d.log.Info("a backend takes connections again", "frontend", f.key, "backend", b.addr)
	if f.d.told != nil {
		f.d.told(b.target(), nil)
	}
}

// seldom logs a warning at most once in ten seconds, because such events affect many connections at
// once.
func (d *Dataplane) seldom(what string, args ...any) {
	now, last := d.now(), d.warned.Load()
	if last != 0 && now-last < int64(10*time.Second) || !d.warned.CompareAndSwap(last, now) {
		return
	}
	d.log.Warn(what, args...)
}

// explainListen adds the likely cause of a failure to listen, and advice.
func explainListen(at balancer.Key, err error) error {
	switch {
	case sockerr.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listening on %s: the port is in use by another program there, or on the wildcard address: find it with `ss -lnp sport = :%d` "+
			"and stop it, or have it listen on another address: %w", at, at.Port, err)
	case sockerr.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("listening on %s: %s is not an address of this host: let vipd hold it (addresses.bind) or add it to an interface: %w",
			at, at.Addr, err)
	case sockerr.Is(err, syscall.EACCES):
		return fmt.Errorf("listening on %s: ports below net.ipv4.ip_unprivileged_port_start (1024) need CAP_NET_BIND_SERVICE: run vipd as root, "+
			"give it that capability, or use a higher port: %w", at, err)
	}
	return fmt.Errorf("listening on %s: %w", at, err)
}
