package userspace

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"vipd/dataplane"
)

// conn is a client's connection.
type conn struct {
	f     *frontend
	to    netip.AddrPort
	since time.Time
	traffic

	// f.mu guards the fields below.
	prev, next *conn
	from       netip.AddrPort // the client's address; it comes from the PROXY header if the frontend reads headers
	entered    bool           // counted by enterLocked
	backend    *backend       // the chosen backend, or nil before the choice
	retries    int            // number of backends that were tried before this one
	served     bool           // the backend has accepted the connection
	cut        bool           // the connection must be reset
	left       bool           // it has ended and is no longer listed by the frontend
	admission  admission

	transport // moves the bytes
}

// traffic counts the relayed bytes. half is set when one direction has ended.
type traffic struct {
	in, out atomic.Uint64
	half    atomic.Bool
}

var (
	// errCut means that this host ended the connection.
	errCut = errors.New("the connection was cut")
	// errHanded means that another process continues the connection.
	errHanded = errors.New("the connection was handed over")
	// errLost means that the client or the backend has reset the connection.
	errLost = errors.New("the client or the backend has reset the connection")
)

// resetDrainTime limits how long after one side's reset the other side may still receive the data
// that was sent before the reset.
const resetDrainTime = 5 * time.Second

func (f *frontend) joinLocked(c *conn) bool {
	if f.removed || f.ended {
		return false
	}
	if c.next == nil {
		f.linkLocked(c)
	}
	return true
}

// enterLocked counts c for the client limits and adds it to the frontend's connections, once the
// client is known. It returns false if the frontend was removed or is closing, or if c exceeds a
// limit.
func (f *frontend) enterLocked(c *conn) bool {
	if f.removed || f.ended {
		return false
	}
	if c.admission, c.entered = f.admitLocked(c.from.Addr()); !c.entered {
		return false
	}
	f.joinLocked(c)
	f.conf.Load().counter.connections.Add(1)
	return true
}

func (f *frontend) linkLocked(c *conn) {
	last := f.conns.prev
	c.prev, c.next = last, &f.conns
	last.next, f.conns.prev = c, c
	f.count++
}

// leaveLocked removes c from the frontend's connections. err is the reason why c ended, or nil. c
// must not be used afterwards.
func (f *frontend) leaveLocked(c *conn, err error) {
	c.prev.next, c.next.prev = c.next, c.prev
	c.left = true
	if errors.Is(err, errNoBackend) {
		f.d.aside.do(func() {
			f.d.log.Debug("resetting a client: no backend accepted it", "frontend", f.key, "client", c.from)
		})
	}
	if f.d.followers.some() && !errors.Is(err, errHanded) {
		entry := c.describeLocked()
		entry.End = c.endLocked(err)
		f.d.followers.publish(connEvent{false, entry})
	}
	if c.served {
		c.backend.release()
	}
	f.count--
	c.admission.end()
}

// endLocked returns the word that describes why a connection ended. err is the reason, or nil.
func (c *conn) endLocked(err error) string {
	switch {
	case c.cut:
		return dataplane.EndCut
	case !c.served:
		return dataplane.EndRefused
	case err == nil:
		return dataplane.EndClosed
	}
	return dataplane.EndReset
}

// timeLeft returns how long c may continue with a maximum age. Connections end up to 10 % earlier,
// so those that started together do not all end at once. The reduction is derived from the client's
// port and the start time, so a process that takes over c calculates the same result.
func (c *conn) timeLeft(maximum time.Duration, now time.Time) time.Duration {
	const steps = 1 << 10
	early := (int64(c.from.Port()) + c.since.UnixNano()/int64(time.Microsecond)) % steps
	return c.since.Sub(now) + maximum - maximum/(10*steps)*time.Duration(early)
}

// chooseLocked chooses the next backend and records it in c, so the dial is abandoned if the
// backend is removed.
func (c *conn) chooseLocked(tried []*backend) (*backend, *config, error) {
	c.backend = nil
	if c.cut {
		return nil, nil, errCut
	}
	b, conf, err := c.f.chooseLocked(c.from, tried)
	if err != nil {
		return nil, nil, err
	}
	c.backend, c.retries = b, len(tried)
	if len(tried) > 0 {
		c.f.d.retries.Add(1)
	}
	return b, conf, nil
}

// settleLocked records that b has accepted the connection. It returns false if c may no longer use
// b because the definition changed during the dial.
func (c *conn) settleLocked(b *backend) bool {
	if c.cut || !c.f.removed && !c.f.conf.Load().keeps(b, time.Now()) {
		return false
	}
	c.served = true
	c.backend = c.f.conf.Load().adopt(b) // the service may have been renamed
	c.backend.total.Add(1)
	if c.f.d.followers.some() {
		c.f.d.followers.publish(connEvent{true, c.describeLocked()})
	}
	return true
}

// cutLocked makes the connection close with a reset.
func (c *conn) cutLocked() {
	c.cut = true
	c.interruptLocked()
}

// begin counts another connection. It returns false if no more connections may start.
func (d *Dataplane) begin() bool {
	d.gate.RLock()
	defer d.gate.RUnlock()
	if d.shutting {
		return false
	}
	d.conns.Add(1)
	return true
}
