package userspace

import (
	"time"

	"vipd/balancer"
)

// tick is the janitor's interval, and so the accuracy of timeouts.
const tick = 100 * time.Millisecond

// janitor enforces idle timeouts and drain deadlines, ends UDP flows, and reports stuck loops. It
// skips frontends whose state does not depend on the time.
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
			d.loops.watch(d.now())
		}
	}
}

// loseFlows deletes the conntrack entries of flows to closed UDP sockets. After a failure it tries
// again at the next tick.
func (d *Dataplane) loseFlows() {
	d.mu.Lock()
	keys := d.lost
	d.lost = nil
	d.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	if err := d.tables.lose(d.ctx, keys); err != nil {
		d.seldom("clients might be redirected to a closed port", "err", err)
		d.mu.Lock()
		defer d.mu.Unlock()
		for k := range keys {
			d.loseLocked(k)
		}
	}
}

// loseLocked records that the UDP socket of a redirected frontend is closed, so loseFlows deletes
// the flows to it.
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

// tidy ends a frontend's connections and flows whose timeout or drain deadline has passed. It
// reports whether the frontend was removed and has no connections left.
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
	}
	return false
}
