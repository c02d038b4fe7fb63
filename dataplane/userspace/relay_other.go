//go:build !linux

package userspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
)

// On systems other than Linux, two goroutines move the bytes of each connection.

// transport is the part of a connection that moves bytes.
type transport struct {
	client *net.TCPConn
	// f.mu guards the fields below.
	server  *net.TCPConn       // the connection to the backend, or nil before it is established
	abandon context.CancelFunc // ends the current dial
	// seen is the traffic that was counted so far, and seenAt the instant when it last changed.
	// They are used for the idle timeout.
	seen   uint64
	seenAt int64
}

// interruptLocked cancels the current dial. If the connection is cut, it also ends all reads and
// writes.
func (c *conn) interruptLocked() {
	if c.abandon != nil {
		c.abandon()
	}
	if c.cut {
		c.setDeadline(longAgo)
	}
}

// retimeLocked does nothing, because watch reads the timeouts.
func (*conn) retimeLocked() {}

func (c *conn) setDeadline(t time.Time) {
	_ = c.client.SetDeadline(t) // deadlines fail only if the connection is closed
	if c.server != nil {
		_ = c.server.SetDeadline(t)
	}
}

// serve relays an accepted connection until it is closed.
func (f *frontend) serve(client *net.TCPConn, from, to netip.AddrPort) {
	c := &conn{f: f, from: from, to: to, since: time.Now(), transport: transport{client: client}}
	err := c.greet()
	f.mu.Lock()
	if err == nil && !f.enterLocked(c) {
		err = errCut
	}
	joined := c.next != nil
	f.mu.Unlock()
	if !joined {
		reset(client)
		return
	}
	if err == nil {
		err = c.connect()
	}
	if err == nil {
		err = c.relay()
	}
	f.mu.Lock()
	f.leaveLocked(c, err)
	f.mu.Unlock()
	for _, side := range []*net.TCPConn{c.server, c.client} {
		switch {
		case side == nil:
		case err != nil:
			reset(side)
		default:
			_ = side.Close() // an error no longer matters
		}
	}
}

// greet reads the client's PROXY header if the frontend requires one.
func (c *conn) greet() error {
	if !c.f.conf.Load().AcceptProxyProtocol {
		return nil
	}
	if err := c.limitGreeting(time.Now().Add(headerTime)); err != nil {
		return err
	}
	text, err := c.readHeader()
	if err == nil {
		c.f.mu.Lock()
		err = c.introduceLocked(text)
		c.f.mu.Unlock()
	}
	if err != nil {
		if len(text) > 0 {
			c.reportHeader(err)
		}
		return err
	}
	return c.limitGreeting(time.Time{})
}

// readHeader returns the client's PROXY header, or the bytes that it has read and an error. It
// reads single bytes until it knows the header's size, so the data after the header stays in the
// socket.
func (c *conn) readHeader() (text []byte, err error) {
	for size := 0; size == 0 || len(text) < size; {
		part := make([]byte, max(1, size-len(text)))
		n, err := c.client.Read(part)
		text = append(text, part[:n]...)
		if err != nil {
			return text, fmt.Errorf("%w: %w", errNoHeader, err)
		}
		if size, err = headerSize(text); err != nil {
			return text, err
		}
	}
	return text, nil
}

// limitGreeting adds c to the frontend's connections, and sets the read deadline of the client.
func (c *conn) limitGreeting(until time.Time) error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.cut || !c.f.joinLocked(c) {
		return errCut
	}
	return c.client.SetReadDeadline(until)
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only if the connection is closed
	_ = c.Close()
}

func (c *conn) connect() error {
	var tried []*backend
	for {
		ctx, cancel := context.WithCancel(c.f.d.ctx)
		c.f.mu.Lock()
		b, conf, err := c.chooseLocked(tried)
		c.abandon = cancel
		c.f.mu.Unlock()
		if err != nil {
			cancel()
			return err
		}
		server, err := c.reach(ctx, b, conf)
		cancel()
		if err == nil {
			if c.settle(b, server) {
				return nil
			}
			reset(server)
		}
		b.release()
		if c.f.refusesPort(err) {
			return err
		}
		tried = append(tried, b)
		c.f.judge(b, err)
	}
}

// reach connects to a backend and sends the PROXY header. If the process has no free descriptors,
// it waits, because the backend is not at fault. To the client, this looks like a slow backend.
func (c *conn) reach(ctx context.Context, b *backend, conf *config) (*net.TCPConn, error) {
	to := c.f.target(b.addr, c.to.Port())
	if c.f.d.chains.leadBack(c.f.key, to) {
		return nil, errLoop
	}
	dialer := net.Dialer{KeepAliveConfig: keepAlive, FallbackDelay: -1, Deadline: time.Now().Add(conf.ConnectTimeout)}
	dialer.SetMultipathTCP(false)
	for wait := (backoff{}); ; {
		server, err := dialer.DialContext(ctx, "tcp", to.String())
		switch {
		case err == nil && conf.ProxyProtocol != balancer.NoProxyProtocol && conf.ProxyProtocol != "":
			if err := writeHeader(server.(*net.TCPConn), conf.ProxyProtocol, c.from, c.to, conf.ConnectTimeout); err != nil {
				reset(server.(*net.TCPConn))
				return nil, err
			}
			return server.(*net.TCPConn), nil
		case err == nil:
			return server.(*net.TCPConn), nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !sockerr.Exhausted(err) || !wait.sleep(ctx.Done()) || time.Now().After(dialer.Deadline):
			return nil, err
		}
	}
}

func writeHeader(server *net.TCPConn, version balancer.ProxyProtocol, client, vip netip.AddrPort, patience time.Duration) error {
	text, err := header(version, client, vip)
	if err != nil {
		return err
	}
	if err := server.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := server.Write(text); err != nil {
		return err
	}
	return server.SetWriteDeadline(time.Time{})
}

// settle makes server the connection's backend socket. It returns false if the definition changed
// during the dial.
func (c *conn) settle(b *backend, server *net.TCPConn) bool {
	c.f.noteSuccess(b)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if !c.settleLocked(b) {
		return false
	}
	c.server, c.seenAt = server, c.f.d.now()
	return true
}

// relay moves bytes in both directions until both have ended. When one direction ends, relay
// forwards the end, and the other direction continues. relay returns the first error, or nil if
// both directions ended without an error.
func (c *conn) relay() error {
	sums := c.f.conf.Load().counter
	r := &relay{c: c}
	var other sync.WaitGroup
	other.Go(func() { r.run(c.server, c.client, &c.out, &sums.out) })
	r.run(c.client, c.server, &c.in, &sums.in)
	other.Wait()
	return r.err
}

type relay struct {
	c    *conn
	once sync.Once
	err  error // the first error
}

// run moves one direction's bytes until it ends, and forwards the end. If one side is reset, the
// other side is also reset. Unlike on Linux, this discards the data in the other side's socket.
func (r *relay) run(src, dst *net.TCPConn, count, sum *atomic.Uint64) {
	err, lost := pump(src, dst, count, sum)
	if err == nil && !r.c.half.Swap(true) { // after the second direction ends, the caller closes both sockets
		if sockerr.Is(src.CloseRead(), syscall.ENOTCONN) {
			err = syscall.ECONNRESET // the other direction has noticed the reset first
		} else {
			err = dst.CloseWrite()
		}
	}
	if err == nil || sockerr.Is(err, syscall.ENOTCONN) { // ENOTCONN means that dst is closed; the other direction reports the cause
		return
	}
	r.once.Do(func() { r.err = err })
	until := longAgo // wakes the other direction
	if lost {
		until = time.Now().Add(resetDrainTime)
	}
	r.c.setDeadline(until)
}

// pump moves bytes until src ends, and then returns nil, or until an error. If dst was reset, lost
// is true: only the other direction may still read from dst.
func pump(src, dst *net.TCPConn, count, sum *atomic.Uint64) (err error, lost bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			written, err := dst.Write(buf[:n])
			count.Add(uint64(written))
			sum.Add(uint64(written))
			if err != nil {
				return err, sockerr.Is(err, syscall.EPIPE, syscall.ECONNRESET)
			}
		}
		if err == io.EOF {
			return nil, false
		}
		if err != nil {
			return err, false
		}
	}
}

// cutExpired ends the connections without traffic during the idle timeout, and those that have
// reached the maximum age. Checking all connections is expensive, so it happens at most ten times
// per timeout.
func (f *frontend) cutExpired(idle, age time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.d.now()
	shortest := idle
	if idle == 0 || age > 0 && age < idle {
		shortest = age
	}
	if shortest == 0 || now-f.idleChecked < int64(shortest)/10 {
		return
	}
	f.idleChecked = now
	for x := f.conns.next; x != &f.conns; x = x.next {
		sum := x.in.Load() + x.out.Load()
		switch {
		case !x.served || x.cut:
		case age > 0 && x.timeLeft(age, time.Now()) <= 0:
			x.cutLocked()
		case sum != x.seen:
			x.seen, x.seenAt = sum, now
		case idle > 0 && now-x.seenAt >= int64(idle):
			x.cutLocked()
		}
	}
}

type route func(int) (*frontend, netip.AddrPort)

// listener is a TCP socket with an accept loop.
type listener struct{ *net.TCPListener }

func (ln *listener) refit(c *config) error { return refit(ln, c) }
func (ln *listener) close()                { _ = ln.Close() } // ends its accept loop

func (d *Dataplane) accept(socket *net.TCPListener, f *frontend, to route) (*listener, error) {
	ln := &listener{socket}
	d.budget.take(1)
	d.tasks.Go(func() {
		defer d.budget.give(1)
		d.acceptLoop(ln, f, to)
	})
	return ln, nil
}

// acceptLoop accepts and serves connections until the listener is closed. While all descriptors are
// in use, or f has used up its share, connections wait in the kernel's queue.
func (d *Dataplane) acceptLoop(ln *listener, f *frontend, to route) {
	slower := backoff{}
	for {
		if !d.awaitRoom(f, d.budget.mayClaim) {
			return
		}
		c, err := ln.AcceptTCP()
		switch {
		case err == nil:
			slower = backoff{}
			if !d.awaitRoom(f, d.budget.claim) {
				reset(c)
				return
			}
			from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
			_, vip := to(0)
			d.goServe(f, c, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), vip)
		case sockerr.Is(err, syscall.ECONNABORTED):
		case errors.Is(err, net.ErrClosed):
			return
		default:
			if sockerr.Exhausted(err) {
				d.budget.shortage.note()
			}
			d.seldom("accepting connections more slowly after an error", "listener", ln.Addr(), "err", err)
			if !slower.sleep(d.ctx.Done()) {
				return
			}
		}
	}
}

// awaitRoom waits until check reports room for another connection of f. It returns false if the
// dataplane is closed during the wait.
func (d *Dataplane) awaitRoom(f *frontend, check func(*frontend) bool) bool {
	for pause := (backoff{}); !check(f); {
		d.budget.shortage.note()
		if !pause.sleep(d.ctx.Done()) {
			return false
		}
	}
	return true
}

// goServe starts a goroutine that serves a connection. It resets the connection if the client may
// not connect or the dataplane is closing.
func (d *Dataplane) goServe(f *frontend, c *net.TCPConn, from, to netip.AddrPort) {
	if !f.conf.Load().allows(d, from.Addr()) || !d.begin() {
		d.budget.give(2)
		reset(c)
		return
	}
	f.descriptors.Add(2)
	go func() {
		defer d.conns.Done()
		defer d.budget.give(2)
		defer f.descriptors.Add(-2)
		f.serve(c, from, to)
	}()
}

// dialAddress is a placeholder, because package net dials.
type dialAddress struct{}

func newDialAddress(netip.AddrPort) (a dialAddress) { return a }

// loops is a placeholder, because goroutines serve each connection.
type loops struct{ d *Dataplane }

func newLoops(d *Dataplane) *loops { return &loops{d} }

func (*loops) start() error { return nil }
func (*loops) halt()        {}
func (*loops) close()       {}

// watch ends idle and old connections.
func (s *loops) watch(int64) {
	for _, f := range s.d.list() {
		if c := f.conf.Load(); f.key.Proto == balancer.TCP {
			f.cutExpired(c.IdleTimeout, c.MaxConnectionAge)
		}
	}
}
