package userspace

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// small is the buffer size of reads while the traffic consists of messages. Most messages are
	// shorter. A read that fills the buffer counts as bulk data.
	small = 16 << 10
	// quota is the number of bytes that a side may move before other connections get their turn.
	quota = 2 << 20
)

// These are the indexes of a connection's sides.
const (
	clientSide = 0
	serverSide = 1
)

// phase is the state of a connection in its loop.
type phase uint8

const (
	choosing phase = iota
	greeting       // the client's PROXY header has not been read completely
	dialing
	settling // the backend has accepted the connection
	relaying
	leaving // the sockets are closed
	gone
)

// transport is the part of a connection that moves bytes. Only the connection's loop uses it.
type transport struct {
	loop    *loop // changed only while f.mu is held
	id      id    // the ID of the client's side
	phase   phase
	failing bool  // a side was reset, and the data that it sent is still being delivered
	until   int64 // when a failing connection is closed at the latest
	err     error
	sides   [2]side
	counter *counter
	dial    dial
	timer   timer
	idle    idleness
	period  int64 // the loop's last period with an event for this connection
}

// side is one socket of a connection, and the data that waits to be written to it.
type side struct {
	fd             int
	readable       bool // a read may find data
	readUntilEmpty bool // an end, a reset or an urgent byte was reported, at which a read stops, so reads continue until they find nothing
	shut           bool // an event reported that its data has ended
	ended          bool // all data was read
	passed         bool // the end of its data was forwarded to the other side
	lost           bool // the socket was reset
	queued         bool // queued for another turn
	bulk           bool // the last read filled the buffer
	watched        bool // the poller reports its events
	eager          bool // the loop also receives events about room for writes
	foreign        bool // the socket has the client's address
	held           int  // number of bytes in pipe; 0 means no pipe
	pipe           pipe // bytes for this side that follow the bytes in pending
	pending        []byte
}

func (s *side) isBlocked() bool { return len(s.pending) > 0 || s.held > 0 }

// watch makes the loop receive a side's edge-triggered events.
func (l *loop) watch(c *conn, i int) {
	s := &c.sides[i]
	events := uint32(unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLRDHUP | unix.EPOLLET&(1<<32-1))
	if s.eager {
		events |= unix.EPOLLOUT
	}
	op := unix.EPOLL_CTL_ADD
	if s.watched {
		op = unix.EPOLL_CTL_MOD
	}
	s.watched = true
	if err := l.poller.control(op, s.fd, events, c.id|id(i)); err != nil {
		l.end(c, err)
	}
}

func (l *loop) event(c *conn, i int, events uint32) {
	defer l.contain(c)
	s := &c.sides[i]
	s.notice(events)
	switch {
	case c.phase == greeting:
		l.proceed(c)
		return
	case c.phase == dialing && i == serverSide:
		l.dialed(c, events)
		return
	}
	if c.phase == relaying && events&unix.EPOLLERR != 0 && !s.lost {
		l.handleReset(c, i)
	}
	if c.phase == relaying && events&unix.EPOLLOUT != 0 && s.isBlocked() {
		l.pump(c, 1-i)
	}
	if c.phase == relaying && s.readable {
		l.pump(c, i)
	}
}

// notice records what an event reports: that a read may find data, an end, a reset or an urgent
// byte.
func (s *side) notice(events uint32) {
	const closing = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	s.readable = s.readable || events&(unix.EPOLLIN|closing) != 0
	s.readUntilEmpty = s.readUntilEmpty || events&(unix.EPOLLPRI|closing) != 0
	s.shut = s.shut || events&unix.EPOLLRDHUP != 0
}

// pump moves data from a side to the other side. It stops when there is no more data, the other
// side has no room, or the quota is used up.
func (l *loop) pump(c *conn, i int) {
	from, to := &c.sides[i], &c.sides[1-i]
	for left := quota; c.phase == relaying && !to.lost && l.flush(c, 1-i); {
		switch {
		case from.ended:
			l.passEnd(c, i)
			return
		case !from.readable:
			return
		case left <= 0:
			if !from.queued {
				from.queued = true
				l.hungry = append(l.hungry, readySide{c, i})
			}
			return
		case from.bulk:
			left -= l.spliceFrom(c, i)
		default:
			left -= l.copyFrom(c, i)
		}
	}
}

// flush writes the data that waits to be written to a side. It returns false if data remains or the
// write failed.
func (l *loop) flush(c *conn, i int) bool {
	s := &c.sides[i]
	for s.isBlocked() {
		var n int
		var errno syscall.Errno
		if len(s.pending) > 0 {
			if n, errno = rawWrite(s.fd, s.pending); errno == 0 {
				s.pending = s.pending[n:]
			}
		} else if n, errno = rawSplice(s.pipe.r, s.fd, s.held); errno == 0 {
			if s.held -= n; s.held == 0 {
				l.returnPipe(s.pipe)
			}
		}
		if errno != 0 {
			l.refused(c, i, errno)
			return false
		}
		c.count(i, n)
	}
	s.pending = nil
	return true
}

// refused handles a failed write to a side. If the socket is full, the connection waits for room.
// Otherwise the side is lost.
func (l *loop) refused(c *conn, i int, errno syscall.Errno) {
	switch errno {
	case unix.EAGAIN:
		if s := &c.sides[i]; !s.eager {
			s.eager = true
			l.watch(c, i)
		}
	default:
		l.handleReset(c, i)
		l.pump(c, i)
	}
}

// count adds n to the counters of bytes written to a side.
func (c *conn) count(to, n int) {
	if to == serverSide {
		c.in.Add(uint64(n))
		c.counter.in.Add(uint64(n))
	} else {
		c.out.Add(uint64(n))
		c.counter.out.Add(uint64(n))
	}
}

// copyFrom reads from a side once, and writes the data to the other side. It returns the number of
// bytes read.
func (l *loop) copyFrom(c *conn, i int) int {
	from, to := &c.sides[i], &c.sides[1-i]
	n, errno := rawRead(from.fd, l.buffer[:])
	switch {
	case errno == unix.EAGAIN:
		from.readable, from.readUntilEmpty = false, false
		return 0
	case errno != 0:
		l.handleReset(c, i)
		fallthrough
	case n == 0:
		from.ended = true
		return 0
	}
	from.bulk = n == small
	// After a read that did not fill the buffer, new data causes another event.
	from.readable = from.bulk || from.readUntilEmpty
	written, errno := rawWrite(to.fd, l.buffer[:n])
	if errno != 0 && errno != unix.EAGAIN {
		l.refused(c, 1-i, errno)
		return n
	}
	if errno != 0 {
		written = 0
	}
	c.count(1-i, written)
	if written < n {
		to.pending = append([]byte(nil), l.buffer[written:n]...)
	}
	return n
}

// passEnd forwards the end of a side's data to the other side. After both sides' data has ended, it
// closes the connection.
func (l *loop) passEnd(c *conn, i int) {
	from, to := &c.sides[i], &c.sides[1-i]
	switch {
	case c.failing:
		l.endWhenDelivered(c)
	case from.passed:
	case to.passed:
		l.end(c, nil)
	default:
		from.passed = true
		c.half.Store(true)
		if errno := rawShutdown(to.fd); errno != 0 && errno != unix.ENOTCONN { // ENOTCONN means that the other side was reset, which is a separate event
			l.end(c, errno)
		}
	}
}

// handleReset handles a side that was reset. The data that it sent before still reaches the other
// side, for example the response to a request that a backend did not read completely. Then the
// other side is also reset.
func (l *loop) handleReset(c *conn, i int) {
	s := &c.sides[i]
	switch {
	case s.lost:
	case c.failing:
		l.end(c, errLost)
	default:
		c.failing, s.lost = true, true
		l.dropData(s)
		s.readable, s.readUntilEmpty = true, true
		c.until = l.d.now() + int64(resetDrainTime)
		l.wheel.set(&c.timer, tick)
	}
}

// endWhenDelivered resets a connection with a lost side after the other side has received
// everything. An earlier reset would discard data in the other side's socket.
func (l *loop) endWhenDelivered(c *conn) {
	from, to := &c.sides[serverSide], &c.sides[clientSide]
	if to.lost {
		from, to = to, from
	}
	if l.d.now() < c.until {
		unacknowledged, err := unix.IoctlGetInt(to.fd, unix.SIOCOUTQ)
		if !from.ended || to.isBlocked() || err == nil && unacknowledged > 0 {
			l.wheel.set(&c.timer, tick)
			return
		}
	}
	l.end(c, errLost)
}

func (l *loop) dropData(s *side) {
	s.pending = nil
	if s.held > 0 {
		l.d.loops.pipes.discard(s.pipe)
		s.held = 0
	}
}

// end closes the sockets of a connection. It closes them normally if err is nil or another process
// continues the connection. Otherwise it resets them.
func (l *loop) end(c *conn, err error) {
	if c.phase >= leaving {
		return
	}
	l.abandon(c)
	c.phase, c.err = leaving, err
	l.forget(c)
	for i := range c.sides {
		l.closeSide(&c.sides[i], err == nil || err == errHanded)
	}
	l.ended = true
	l.proceed(c)
}

func (l *loop) closeSide(s *side, inOrder bool) {
	l.dropData(s)
	switch {
	case s.fd < 0:
	case inOrder:
		rawClose(s.fd)
	default:
		rawReset(s.fd)
	}
	l.d.replies.closed(s.foreign)
	s.fd, s.watched, s.foreign = -1, false, false
}

func (l *loop) forget(c *conn) {
	l.wheel.stop(&c.timer)
	l.table.remove(c.id)
	c.id = noID
}
