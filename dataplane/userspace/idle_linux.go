package userspace

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// idleness is the state of a connection's idle timeout: the traffic at the last check, and when a
// check last found new traffic.
type idleness struct {
	seen   uint64
	seenAt int64
	kept   bool // keepalives are enabled on the backend's socket
}

// keepAfter is the age at which vipd enables keepalives on a connection to a backend. Most
// connections end sooner, and setting the options requires four system calls.
const keepAfter = 5 * time.Second

// setTimer sets the timer of a relayed connection for its next check.
func (l *loop) setTimer(c *conn) {
	if c.failing {
		return // its timer already limits how long it may continue (resetDrainTime)
	}
	next := time.Duration(0)
	if !c.idle.kept {
		next = keepAfter
	}
	if timeout := c.f.conf.Load().IdleTimeout; timeout > 0 && (next == 0 || timeout/10 < next) {
		next = timeout / 10
	}
	if age := c.f.conf.Load().MaxConnectionAge; age > 0 {
		if left := max(tick, c.timeLeft(age, time.Now())); next == 0 || left < next {
			next = left
		}
	}
	if next > 0 {
		l.wheel.set(&c.timer, next)
	} else {
		l.wheel.stop(&c.timer)
	}
}

func (l *loop) expired(c *conn) {
	defer l.contain(c)
	switch {
	case c.phase == greeting:
		c.reportHeader(errNoHeader)
		l.end(c, errNoHeader)
	case c.phase == dialing && c.dial.busy:
		l.connect(c)
	case c.phase == dialing:
		l.failed(c, dialError(c.dial.to, os.ErrDeadlineExceeded))
	case c.phase == relaying && c.failing:
		l.endWhenDelivered(c)
	case c.phase == relaying:
		l.keep(c)
		if l.isIdle(c) || isTooOld(c) {
			l.cut(c)
			return
		}
		l.setTimer(c)
	}
}

func isTooOld(c *conn) bool {
	age := c.f.conf.Load().MaxConnectionAge
	return age > 0 && c.timeLeft(age, time.Now()) <= 0
}

func (l *loop) keep(c *conn) {
	if c.idle.kept {
		return
	}
	c.idle.kept = true
	for _, o := range keepAliveOptions {
		_ = rawOption(c.sides[serverSide].fd, o.level, o.name, o.value)
	}
}

func (l *loop) cut(c *conn) {
	if !c.f.mu.TryLock() {
		l.wheel.set(&c.timer, tick)
		return
	}
	c.cut = true
	c.f.mu.Unlock()
	l.end(c, errCut)
}

// isIdle reports whether a connection had no traffic for its idle timeout. It also asks the kernel,
// because the counters miss some traffic: they count a large transfer in steps, and do not change
// while a slow reader empties socket buffers.
func (l *loop) isIdle(c *conn) bool {
	timeout, now, x := int64(c.f.conf.Load().IdleTimeout), l.d.now(), &c.idle
	if timeout <= 0 {
		return false
	}
	quiet, acknowledged := socketActivity(c)
	if seen := c.in.Load() + c.out.Load() + acknowledged; seen != x.seen {
		x.seen, x.seenAt = seen, now
	}
	return min(quiet, now-x.seenAt) >= timeout
}

// socketActivity asks the kernel about both sockets. It returns how long ago either socket last
// received data, and the total number of bytes that the peers have acknowledged.
func socketActivity(c *conn) (quiet int64, acknowledged uint64) {
	quiet = int64(forever)
	for i := range c.sides {
		info, err := unix.GetsockoptTCPInfo(c.sides[i].fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			continue
		}
		quiet = min(quiet, int64(info.Last_data_recv)*int64(time.Millisecond))
		acknowledged += info.Bytes_acked
	}
	return quiet, acknowledged
}

// forever is longer than any timeout.
const forever = time.Duration(1<<63 - 1)
