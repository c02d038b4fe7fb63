package userspace

import "golang.org/x/sys/unix"

// greet reads the client's PROXY header, or waits until the header is complete. The caller has
// locked the frontend.
func (l *loop) greet(c *conn) {
	complete, err := l.readHeader(c)
	switch {
	case err != nil:
		c.reportHeader(err)
		l.end(c, err)
	case complete:
		l.wheel.stop(&c.timer)
		c.phase = choosing
		l.proceed(c)
	case !c.sides[clientSide].watched:
		l.wheel.set(&c.timer, headerTime)
		l.watch(c, clientSide)
	}
}

// readHeader reads the header if it is complete. An incomplete header stays in the socket, so
// another process can take over the connection. The caller has locked the frontend, which
// readHeader unlocks.
func (l *loop) readHeader(c *conn) (complete bool, err error) {
	defer c.f.mu.Unlock()
	if !c.f.joinLocked(c) {
		return false, errCut
	}
	s := &c.sides[clientSide]
	n, errno := rawPeek(s.fd, l.buffer[:])
	switch {
	case errno == unix.EAGAIN:
		return false, nil
	case errno != 0:
		return false, errno
	case n == 0:
		return false, errLost
	}
	size, err := headerSize(l.buffer[:n])
	if err != nil {
		return false, err
	}
	if size == 0 || size > n {
		if s.shut {
			return false, errNoHeader
		}
		return false, nil
	}
	if _, errno = rawRead(s.fd, l.buffer[:size]); errno != 0 {
		return false, errno
	}
	return true, c.introduceLocked(l.buffer[:size])
}
