package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer/lib/sockerr"
)

// route returns the frontend of an accepted connection, and the VIP and port to which the client
// connected. The frontend is nil if the connection belongs to none.
type route func(fd int) (*frontend, netip.AddrPort)

// listener is a TCP socket from which the first loop accepts connections.
type listener struct {
	d     *Dataplane
	f     *frontend // nil if several frontends share the socket
	route route
	addr  *net.TCPAddr

	mu      sync.Mutex // guards fd; loops only try to lock it
	fd      int        // -1 means closed
	stopped bool       // reports whether the listener no longer accepts connections
}

// intake holds a loop's waiting listeners and clients.
type intake struct {
	paused  []*listener // listeners without room for their connections
	resumed int64       // the instant of the last check for room for the paused listeners
	ended   bool        // a connection has ended since the last check
	orphans []orphan    // clients of frontends that are not applied yet
}

// acceptBatch is the maximum number of connections that a loop accepts before it handles other
// events.
const acceptBatch = 16

// accept makes the first loop accept connections from socket, and use the socket exclusively. If
// several frontends share the socket, f is nil.
func (d *Dataplane) accept(socket *net.TCPListener, f *frontend, to route) (*listener, error) {
	ln := &listener{d: d, f: f, route: to, addr: socket.Addr().(*net.TCPAddr)}
	raw, err := socket.SyscallConn()
	if err == nil {
		err = control(raw, func(fd uintptr) (err error) { // a copy that Go's scheduler doesn't watch
			ln.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
			return err
		})
	}
	_ = socket.Close()
	if err != nil {
		return nil, err
	}
	d.budget.take(1)
	if err := d.loops.add(ln); err != nil {
		ln.close()
		return nil, fmt.Errorf("accepting connections at %s: %w", ln.addr, err)
	}
	return ln, nil
}

func (ln *listener) id() id { return id(ln.fd) | listenerBit }

func (ln *listener) Addr() net.Addr { return ln.addr }

func (ln *listener) refit(c *config) error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return fit(uintptr(ln.fd), c)
}

// stop makes the loop accept no more connections. The socket stays open.
func (ln *listener) stop() {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if !ln.stopped {
		ln.stopped = true
		ln.d.loops.remove(ln)
	}
}

func (ln *listener) close() {
	ln.stop()
	ln.mu.Lock()
	defer ln.mu.Unlock()
	_ = unix.Close(ln.fd)
	ln.fd = -1
	ln.d.budget.give(1)
}

// accept accepts connections while the descriptor budget has room for them. Otherwise they wait in
// the kernel's queue.
func (l *loop) accept(ln *listener) {
	if !ln.mu.TryLock() {
		return // another goroutine is changing or closing it; epoll repeats the event
	}
	defer ln.mu.Unlock()
	for range acceptBatch {
		if ln.stopped {
			return
		}
		if !l.d.budget.claim(ln.f) {
			l.pause(ln)
			return
		}
		fd, from, errno := rawAccept(ln.fd)
		switch {
		case errno == 0:
			l.admit(ln, fd, from)
			continue
		case errno == unix.EAGAIN, errno == unix.ECONNABORTED:
		default:
			if sockerr.Exhausted(errno) {
				l.d.budget.shortage.note()
			}
			l.d.seldom("accepting connections more slowly after an error", "listener", ln.addr, "err", errno)
			l.pause(ln)
		}
		l.d.budget.give(2)
		return
	}
}

// pause makes the loop ignore a listener until there is room for its connections. The caller has
// locked ln.
func (l *loop) pause(ln *listener) {
	_ = l.poller.control(unix.EPOLL_CTL_MOD, ln.fd, 0, ln.id())
	l.paused = append(l.paused, ln)
}

// resume accepts connections again from each paused listener, if there is room for its connections.
func (l *loop) resume() {
	if len(l.paused) > 0 && (l.ended || l.meter.woke >= l.resumed+int64(tick)) {
		l.resumed = l.meter.woke
		l.paused = slices.DeleteFunc(l.paused, l.unpaused)
	}
	l.ended = false
}

// unpaused makes the loop accept from ln again if there is room. It reports whether ln can be
// removed from the paused listeners.
func (l *loop) unpaused(ln *listener) bool {
	if !ln.mu.TryLock() {
		return false
	}
	defer ln.mu.Unlock()
	if ln.stopped {
		return true
	}
	may := l.d.budget.mayClaim(ln.f)
	if may {
		_ = l.poller.control(unix.EPOLL_CTL_MOD, ln.fd, unix.EPOLLIN, ln.id())
	}
	return may
}

// orphan is an accepted client whose frontend is not applied yet, because this process has just
// taken over from another.
type orphan struct {
	ln   *listener
	fd   int
	from netip.AddrPort
}

// admit checks and serves an accepted client. Without a frontend, or if the frontend already uses
// its share of the file descriptors, the client is reset. While this process is taking over, the
// client of a missing frontend waits.
func (l *loop) admit(ln *listener, fd int, from netip.AddrPort) {
	defer l.containClient(ln.f, fd, from)
	f, to := ln.route(fd)
	switch {
	case f == nil && l.d.inheriting.Load():
		l.orphans = append(l.orphans, orphan{ln, fd, from})
	case f == nil:
		l.turnAway(fd)
	case ln.f == nil && !l.d.budget.fair(f.descriptors.Load()+2):
		l.d.budget.shortage.note()
		l.d.seldom("resetting clients: the service already uses its full share of the file descriptors", "frontend", f.key)
		l.turnAway(fd)
	default:
		l.check(f, fd, from, to)
	}
}

// check serves a client if it may connect. If the node's own addresses must be read first, which
// may be slow, the client waits.
func (l *loop) check(f *frontend, fd int, from, to netip.AddrPort) {
	defer l.containClient(f, fd, from)
	may, sure := f.conf.Load().admits(l.d, from.Addr())
	if sure && may {
		l.serve(f, fd, from, to, f.conf.Load().AcceptProxyProtocol)
		return
	}
	read := !sure && l.d.reads.do(func() {
		l.d.own.has(from.Addr())
		l.send(func(l *loop) { l.check(f, fd, from, to) })
	})
	if !read {
		l.turnAway(fd)
	}
}

func (l *loop) adoptOrphans() {
	if len(l.orphans) == 0 {
		return
	}
	all := l.orphans
	l.orphans = nil
	for _, o := range all {
		l.admit(o.ln, o.fd, o.from)
	}
}

func (l *loop) turnAway(fd int) {
	rawReset(fd)
	l.d.budget.give(2)
}

// serve starts to serve a connection. If greets is true, the client must first send a PROXY header.
func (l *loop) serve(f *frontend, fd int, from, to netip.AddrPort, greets bool) {
	if !l.d.begin() {
		l.turnAway(fd)
		return
	}
	f.descriptors.Add(2)
	c := &conn{f: f, from: from, to: to, since: time.Now()}
	c.sides = [2]side{{fd: fd}, {fd: -1}}
	if greets {
		c.phase = greeting
	}
	c.loop = l.freest()
	if c.loop == l {
		l.adopt(c)
	} else {
		c.loop.send(func(other *loop) { other.adopt(c) })
	}
}
