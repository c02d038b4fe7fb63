package userspace

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// conn is a client's connection, from the accept to the end.
type conn struct {
	f      *frontend
	client *net.TCPConn
	// from is the client's address, and to the VIP and port to which it connected.
	from, to netip.AddrPort
	since    time.Time
	// traffic holds the counters of the relay.
	traffic traffic
	// attempt is the current dial.
	attempt attempt

	// relaying moves the bytes after the dial. Only the connection's goroutine uses it.
	relaying *relaying

	// f.mu guards the fields below.
	prev, next *conn
	backend    *backend     // chosen; nil means not yet
	retries    int          // backends that were tried before it
	server     *net.TCPConn // established; nil means not yet
	cut        bool         // to be reset
	left       bool         // ended, no longer among the frontend's connections
	admission  admission
	// seen is the traffic at the instant seenAt, for the idle timeout. taken is the part of seen
	// that had reached the two sides at the last check; 0 means no check since seenAt.
	seen, taken uint64
	seenAt      int64
}

// forever is longer than any timeout.
const forever = time.Duration(1<<63 - 1)

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// serve handles an accepted connection until its end.
func (f *frontend) serve(client *net.TCPConn, from, to netip.AddrPort) {
	c := &conn{f: f, client: client, from: from, to: to, since: time.Now()}
	if !f.enter(c) {
		reset(client)
		return
	}
	f.carry(c)
}

// carry continues a connection in any state, until its end or its handover.
func (f *frontend) carry(c *conn) {
	err := c.proceed()
	for errors.Is(err, errPaused) {
		if c.handOver() {
			break
		}
		c.unpause()
		err = c.proceed()
	}
	f.leave(c, err)
	if errors.Is(err, errPaused) {
		err = nil // only a copy is closed
	}
	if c.server != nil {
		closing(c.server, err)
		c.backend.release()
	}
	closing(c.client, err)
	if errors.Is(err, errNoBackend) {
		f.d.log.Debug("resetting a client: no backend took it", "frontend", f.key, "client", c.from)
	}
}

// proceed connects to a backend, if necessary, and relays until the end or a pause.
func (c *conn) proceed() error {
	if c.server == nil {
		if err := c.connect(); err != nil {
			return err
		}
	}
	if c.relaying == nil {
		c.traffic.counter = c.f.conf.Load().counter
		c.relaying = newRelaying(c.client, c.server, &c.traffic, c.f.d.pipes)
	}
	return c.relaying.relay()
}

// pauseLocked makes the connection's goroutine stop moving bytes.
func (c *conn) pauseLocked() {
	c.traffic.paused.Store(true)
	c.stopLocked()
}

// stopLocked interrupts all dials, reads and writes of the connection's goroutine.
func (c *conn) stopLocked() {
	c.attempt.abandon()
	c.setDeadlineLocked(longAgo)
}

func (c *conn) setDeadlineLocked(t time.Time) {
	_ = c.client.SetDeadline(t) // both fail only if it is closed
	if c.server != nil {
		_ = c.server.SetDeadline(t)
	}
}

// unpause resumes it after a failed handover.
func (c *conn) unpause() {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.traffic.paused.Store(false)
	if !c.cut {
		c.setDeadlineLocked(time.Time{})
	}
}

// closing closes a side like the connection ended: in order, or with a reset.
func closing(c *net.TCPConn, err error) {
	if err != nil {
		reset(c)
		return
	}
	_ = c.Close() // the outcome no longer matters
}

// reset closes with an RST.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only if it is closed
	_ = c.Close()
}

// enter adds c to the connections, unless the frontend was removed or c is over a limit.
func (f *frontend) enter(c *conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed || f.ended {
		return false
	}
	var within bool
	if c.admission, within = f.admitLocked(c.from.Addr()); !within {
		return false
	}
	f.linkLocked(c)
	f.conf.Load().counter.connections.Add(1)
	if f.handing {
		c.pauseLocked()
	}
	return true
}

func (f *frontend) linkLocked(c *conn) {
	last := f.conns.prev
	c.prev, c.next = last, &f.conns
	last.next, f.conns.prev = c, c
	f.count++
}

// leave removes c, which ended with err. With errPaused it continues in another process. c must not
// be used afterwards.
func (f *frontend) leave(c *conn, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.prev.next, c.next.prev = c.next, c.prev
	c.left = true
	if f.d.followers.some() && !errors.Is(err, errPaused) {
		entry := c.describeLocked()
		entry.End = c.endLocked(err)
		f.d.followers.tell(news{false, entry})
	}
	f.count--
	c.admission.end()
}

// endLocked returns the word for the end of a connection with err.
func (c *conn) endLocked(err error) string {
	switch {
	case c.cut:
		return dataplane.EndCut
	case c.server == nil:
		return dataplane.EndRefused
	case err == nil:
		return dataplane.EndClosed
	}
	return dataplane.EndReset
}

// connect finds a backend that accepts the connection. It tries each at most once.
func (c *conn) connect() error {
	var tried []*backend
	for {
		b, conf, err := c.choose(tried)
		if err != nil {
			return err
		}
		if len(tried) > 0 {
			c.f.d.retries.Add(1)
		}
		server, err := c.reach(b, conf)
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

// choose records the choice, so the connection is cut if the backend is removed.
func (c *conn) choose(tried []*backend) (*backend, *config, error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	switch {
	case c.cut:
		return nil, nil, errCut
	case c.traffic.paused.Load():
		return nil, nil, errPaused
	}
	b, conf, err := c.f.chooseLocked(c.from, tried)
	if err == nil {
		c.backend, c.retries = b, len(tried)
		c.attempt.begin(conf.ConnectTimeout)
	} else {
		c.backend = nil
	}
	return b, conf, err
}

// reach connects and sends the header.
func (c *conn) reach(b *backend, conf *config) (*net.TCPConn, error) {
	server, err := c.dial(b)
	if err != nil || conf.ProxyProtocol == balancer.NoProxyProtocol || conf.ProxyProtocol == "" {
		return server, err
	}
	if err := writeHeader(server, conf.ProxyProtocol, c.from, c.to, conf.ConnectTimeout); err != nil {
		reset(server)
		return nil, err
	}
	return server, nil
}

// settle makes server the other side, unless the definition changed during the dial.
func (c *conn) settle(b *backend, server *net.TCPConn) bool {
	c.f.praise(b)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.cut || !c.f.removed && !c.f.conf.Load().keeps(b, time.Now()) {
		return false
	}
	c.server = server
	if c.traffic.paused.Load() {
		c.pauseLocked()
	}
	c.seenAt = c.f.d.now()
	c.backend = c.f.conf.Load().adopt(b) // the service may have another name now
	c.backend.total.Add(1)
	if c.f.d.followers.some() {
		c.f.d.followers.tell(news{true, c.describeLocked()})
	}
	return true
}

// cutLocked makes the connection's goroutine reset the connection.
func (c *conn) cutLocked() {
	c.cut = true
	c.stopLocked()
}

// traffic holds a relay's counters, and its state.
type traffic struct {
	in, out atomic.Uint64
	// half reports whether one direction has ended.
	half atomic.Bool
	// paused reports whether both directions must stop, and keep their buffered bytes.
	paused  atomic.Bool
	counter *counter
}
