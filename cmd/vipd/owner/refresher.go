package owner

import (
	"sync/atomic"
	"time"

	"vipd/balancer/failover"
)

// refresher keeps the gate open while the session is confirmed.
type refresher struct {
	kernel Kernel
	timing failover.Timing
	// deadline is until when the session is confirmed, and refreshed is the time of the last refresh.
	deadline, refreshed atomic.Int64
	opened              atomic.Bool
	// late is the longest delay of a refresh.
	late atomic.Int64
}

// open opens the gate, and begins to refresh it.
func (r *refresher) open() error {
	began := now()
	if err := r.kernel.Open(); err != nil {
		return err
	}
	r.refreshed.Store(int64(began))
	r.opened.Store(true)
	return nil
}

// run refreshes the gate until done.
func (r *refresher) run(done <-chan struct{}) {
	every := r.timing.Gate / 8
	for next := now(); ; next = next.Add(every) {
		at := now()
		if late := at.Since(next); late > time.Duration(r.late.Load()) {
			r.late.Store(int64(late))
		}
		if next < at {
			next = at
		}
		if r.opened.Load() && r.timing.Passes(at, failover.Time(r.deadline.Load())) {
			r.kernel.Refresh()
			r.refreshed.Store(int64(at))
		}
		select {
		case <-done:
			return
		default:
			time.Sleep(next.Add(every).Since(now()))
		}
	}
}

// lapsed reports whether the gate may have closed by itself, and how long ago it was refreshed.
func (r *refresher) lapsed(at failover.Time) (late time.Duration, lapsed bool) {
	late = at.Since(failover.Time(r.refreshed.Load()))
	return late, r.opened.Load() && late > r.timing.Gate*4/5 && r.opened.CompareAndSwap(true, false)
}
