package userspace

import (
	"time"

	"vipd/balancer"
)

// tick is the interval of the janitor, and so the accuracy of timeouts.
const tick = 100 * time.Millisecond

// janitor handles idle timeouts, the ends of drains, and the ends of UDP flows. Frontends without
// any of these cost nothing.
func (d *Dataplane) janitor() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-t.C:
			d.tidy(time.Now())
			d.loseFlows()
		}
	}
}

// loseFlows makes conntrack forget flows to closed sockets. It retries failures at the next tick.
func (d *Dataplane) loseFlows() {
	d.mu.Lock()
	keys := d.lost
	d.lost = nil
	d.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	if err := d.tables.lose(d.ctx, keys); err != nil {
		d.seldom("clients may be led to a port that is closed", "err", err)
		d.mu.Lock()
		defer d.mu.Unlock()
		for k := range keys {
			d.loseLocked(k)
		}
	}
}

// loseLocked records that a frontend's UDP socket, to which redirects led, is closed.
func (d *Dataplane) loseLocked(k balancer.Key) {
	if d.lost == nil {
		d.lost = map[balancer.Key]bool{}
	}
	d.lost[k] = true
}

func (d *Dataplane) tidy(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.timed {
		if f.tidy(now) {
			d.dropLocked(f)
		}
	}
}

// tidy handles the timeouts of a frontend, and reports whether nothing is left of it.
func (f *frontend) tidy(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conf.Load()
	if f.removed {
		if !now.Before(f.drainUntil) {
			for x := f.conns.next; x != &f.conns; x = x.next {
				x.cutLocked()
			}
		}
		if f.count == 0 {
			return true
		}
	} else if !f.nextLost.IsZero() && !now.Before(f.nextLost) {
		f.cutLostLocked(now)
	}
	if f.key.Proto == balancer.UDP {
		f.endIdleFlowsLocked(c)
	} else if c.IdleTimeout > 0 && f.count > 0 {
		f.cutIdleLocked(int64(c.IdleTimeout))
	}
	return false
}

// cutIdleLocked ends connections without traffic for the timeout. Checking all of them is
// expensive, so it happens only ten times per timeout.
func (f *frontend) cutIdleLocked(timeout int64) {
	now := f.d.now()
	if now-f.idleChecked < timeout/10 {
		return
	}
	f.idleChecked = now
	for x := f.conns.next; x != &f.conns; x = x.next {
		if x.server == nil || x.cut {
			continue
		}
		if sum := x.traffic.in.Load() + x.traffic.out.Load(); sum != x.seen {
			x.seen, x.seenAt, x.taken = sum, now, 0
			continue
		}
		over := now-x.seenAt >= timeout
		if x.taken == allTaken && !over {
			continue
		}
		// A large transfer is counted in steps, and a slow reader empties the buffers of its
		// socket. Only the sockets show that.
		client, server := look(x.client), look(x.server)
		taken := client.taken + server.taken
		quiet := min(client.quiet, server.quiet)
		switch {
		case x.taken != 0 && x.taken != allTaken && x.taken != taken:
			x.seenAt = now
		case over && quiet < time.Duration(timeout):
			x.seenAt = now - int64(quiet)
		case over:
			x.cutLocked()
		}
		if x.taken = taken; !client.waits && !server.waits {
			x.taken = allTaken
		}
	}
}

// allTaken is the value of conn.taken if no side has data to take: new data is counted.
const allTaken = ^uint64(0)

// glance is a socket's view of its connection.
type glance struct {
	// quiet is the time since it last received data.
	quiet time.Duration
	// taken is the number of bytes that the other side has acknowledged. waits reports whether more
	// are unacknowledged.
	taken uint64
	waits bool
}
