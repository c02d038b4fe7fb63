package userspace

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
)

// dial is an attempt to find a backend that accepts a connection. It tries each backend at most
// once.
type dial struct {
	backend  *backend
	conf     *config
	tried    []*backend
	deadline int64          // the instant of the connect timeout
	busy     bool           // the process has no free descriptors
	to       netip.AddrPort // the backend's address and port; in a port range, the port that matches the client's
}

func (l *loop) adopt(c *conn) {
	defer l.contain(c)
	c.timer.owner = c
	c.id = l.table.add(c)
	if c.phase == relaying {
		l.relay(c)
		return
	}
	l.proceed(c)
}

// interruptLocked makes the loop check the connection again.
func (c *conn) interruptLocked() {
	if l := c.loop; l != nil {
		l.send(func(l *loop) { l.proceed(c) })
	}
}

// retimeLocked makes the loop use the timeouts of the new definition.
func (c *conn) retimeLocked() { c.interruptLocked() }

// proceed continues a connection whose next step needs the frontend's lock. If another goroutine
// holds the lock, the connection continues at a later turn of the loop.
func (l *loop) proceed(c *conn) {
	defer l.contain(c)
	if !c.f.mu.TryLock() {
		l.busy = append(l.busy, c)
		return
	}
	switch {
	case c.loop != l: // the connection has moved to another loop
		c.interruptLocked()
		c.f.mu.Unlock()
	case c.phase == gone:
		c.f.mu.Unlock()
	case c.cut && c.phase < leaving:
		c.f.mu.Unlock()
		l.end(c, errCut)
	case c.phase == greeting:
		l.greet(c)
	case c.phase == choosing:
		l.choose(c)
	case c.phase == dialing:
		if !l.keeps(c) {
			l.failed(c, nil)
		}
	case c.phase == settling:
		l.settle(c)
	case c.phase == relaying:
		c.f.mu.Unlock()
		l.setTimer(c) // the timeouts may have changed
	case c.phase == leaving:
		l.leave(c)
	}
}

// keeps reports whether the connection may still use the backend to which it is connecting. The
// caller has locked the frontend, which keeps unlocks.
func (l *loop) keeps(c *conn) bool {
	defer c.f.mu.Unlock()
	return c.f.conf.Load().keeps(c.dial.backend, time.Now())
}

func (l *loop) choose(c *conn) {
	b, conf, err := l.chosen(c)
	if err != nil {
		l.end(c, err)
		return
	}
	c.dial.backend, c.dial.conf = b, conf
	c.dial.deadline = l.d.now() + int64(conf.ConnectTimeout)
	c.phase = dialing
	c.dial.to = c.f.target(b.addr, c.to.Port())
	if l.d.chains.leadBack(c.f.key, c.dial.to) {
		l.failed(c, errLoop)
		return
	}
	l.connect(c)
}

func (l *loop) chosen(c *conn) (*backend, *config, error) {
	defer c.f.mu.Unlock()
	if !c.entered && !c.f.enterLocked(c) {
		return nil, nil, errCut
	}
	return c.chooseLocked(c.dial.tried)
}

// connect starts a connection to the chosen backend. If the process has no free descriptors, the
// connection waits, because the backend is not at fault. To the client, this looks like a slow
// backend.
func (l *loop) connect(c *conn) {
	d := &c.dial
	to := d.backend.to
	if d.to != d.backend.addr {
		to = newDialAddress(d.to)
	}
	from := d.conf.sourceFor(l.d, c.from.Addr(), keyAt(d.to, balancer.TCP))
	fd, errno := rawDial(&to, from, d.conf.MSS)
	c.sides[serverSide] = side{fd: fd, eager: true, foreign: fd >= 0 && from.IsValid()}
	l.d.replies.opened(c.sides[serverSide].foreign)
	d.busy = sockerr.Exhausted(errno)
	switch {
	case d.busy && l.d.now() < d.deadline:
		l.wheel.set(&c.timer, tick)
	case errno == 0:
		c.sides[serverSide].eager = false // no write waits for room in the socket yet
		l.dialed(c, unix.EPOLLOUT)
	case errno == unix.EINPROGRESS:
		l.wheel.set(&c.timer, d.conf.ConnectTimeout)
		l.watch(c, serverSide)
	default:
		l.failed(c, dialError(d.to, errno))
	}
}

func (l *loop) dialed(c *conn, events uint32) {
	s := &c.sides[serverSide]
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil {
			err = syscall.Errno(errno)
		}
		if errno == 0 {
			err = unix.ECONNRESET // an earlier call has already returned the cause
		}
		l.failed(c, dialError(c.dial.to, err))
		return
	}
	if events&unix.EPOLLOUT == 0 {
		return
	}
	if err := l.introduce(c); err != nil {
		l.failed(c, err)
		return
	}
	c.f.noteSuccess(c.dial.backend)
	c.phase = settling
	l.proceed(c)
}

// introduce sends the PROXY header. It returns an error if the socket is connected to itself. This
// happens if nothing listens on the backend's port and the kernel chose that port as the local
// port.
func (l *loop) introduce(c *conn) error {
	d := &c.dial
	if l.d.loops.mayChoose(d.to.Port()) && portOf(c.sides[serverSide].fd) == d.to {
		return dialError(d.to, unix.ECONNREFUSED)
	}
	if d.conf.ProxyProtocol == balancer.NoProxyProtocol || d.conf.ProxyProtocol == "" {
		return nil
	}
	text, err := header(d.conf.ProxyProtocol, c.from, c.to)
	if err != nil {
		return err
	}
	n, errno := rawWrite(c.sides[serverSide].fd, text)
	if errno != 0 {
		return os.NewSyscallError("write", errno)
	}
	c.sides[serverSide].pending = text[n:]
	return nil
}

// settle starts the relay, unless the definition changed during the dial. The caller has locked the
// frontend.
func (l *loop) settle(c *conn) {
	if !l.settled(c) {
		l.failed(c, nil)
		return
	}
	c.counter = c.f.conf.Load().counter
	c.dial = dial{}
	c.phase = relaying
	c.sides[clientSide].readable = true
	l.relay(c)
}

func (l *loop) settled(c *conn) bool {
	defer c.f.mu.Unlock()
	return c.settleLocked(c.dial.backend)
}

// relay moves the available data, and then waits for events on both sides.
func (l *loop) relay(c *conn) {
	c.idle = idleness{seenAt: l.d.now()}
	l.setTimer(c)
	for i := range c.sides {
		if c.phase == relaying {
			l.pump(c, i)
		}
		if c.phase == relaying && !c.sides[i].watched {
			l.watch(c, i)
		}
	}
}

// failed continues with another backend after a failed dial. If err is nil, the backend is not at
// fault.
func (l *loop) failed(c *conn, err error) {
	b := c.dial.backend
	if c.f.refusesPort(err) {
		l.end(c, err)
		return
	}
	unanswered := c.sides[serverSide].foreign && errors.Is(err, os.ErrDeadlineExceeded)
	l.abandon(c)
	c.dial.tried = append(c.dial.tried, b)
	if unanswered {
		c.noteUnanswered(b)
	} else {
		c.f.judge(b, err)
	}
	c.phase = choosing
	l.busy, l.hurry = append(l.busy, c), true
}

// noteUnanswered counts a dial with the client's address as its source that the backend did not
// answer. It does not count as a failure of the backend, because the reply may have bypassed this
// node.
func (c *conn) noteUnanswered(b *backend) {
	c.f.conf.Load().counter.failures.Add(1)
	c.f.d.seldom(`an endpoint did not answer a connection from its client's address (source = "client"): unless the endpoint is down, `+
		"its route to the client bypasses this node", "frontend", c.f.key, "backend", b.addr, "client", c.from)
}

// abandon ends the current dial, closes its socket, and releases the backend.
func (l *loop) abandon(c *conn) {
	if c.phase != dialing && c.phase != settling {
		return
	}
	l.wheel.stop(&c.timer)
	s := &c.sides[serverSide]
	if s.watched { // a child process that is starting may have a copy of the socket, whose events would look like the next dial's events
		l.poller.remove(s.fd)
	}
	l.closeSide(s, false)
	c.dial.backend.release()
}

// leave removes a connection from its frontend after its sockets were closed. The caller has locked
// the frontend, which leave unlocks.
func (l *loop) leave(c *conn) {
	defer l.finish(c) // even if l.left panics
	l.left(c)
}

// finish marks a connection as ended, and returns its descriptors to the budget.
func (l *loop) finish(c *conn) {
	c.phase = gone
	c.f.descriptors.Add(-2)
	l.d.budget.give(2)
	l.d.conns.Done()
}

func (l *loop) left(c *conn) {
	defer c.f.mu.Unlock()
	if c.next != nil {
		c.f.leaveLocked(c, c.err)
	}
}
