package owner

import (
	"sync/atomic"
	"time"

	"vipd/balancer/failover/local"
)

// refresher keeps the gate open until the decider's deadline.
type refresher struct {
	kernel Kernel
	// timeout is how long the gate stays open after a refresh.
	timeout time.Duration
	// deadline is the decider's deadline. refreshed is when the gate was last refreshed.
	deadline, refreshed atomic.Int64
	opened              atomic.Bool
	// late is how late a refresh was at most.
	late atomic.Int64
}

// open opens the gate and starts refreshing it.
func (r *refresher) open() error {
	began := now()
	if err := r.kernel.Open(); err != nil {
		return err
	}
	r.refreshed.Store(int64(began))
	r.opened.Store(true)
	return nil
}

// run refreshes the gate until done is closed.
func (r *refresher) run(done <-chan struct{}) {
	every := r.timeout / 8
	for next := now(); ; next = next.Add(every) {
		at := now()
		if late := at.Since(next); late > time.Duration(r.late.Load()) {
			r.late.Store(int64(late))
		}
		if next < at {
			next = at
		}
		r.refresh(at)
		select {
		case <-done:
			return
		default:
			time.Sleep(next.Add(every).Since(now()))
		}
	}
}

// refresh refreshes an open gate if the deadline permits this. It does not refresh an overdue gate,
// because that would not open the gate again, but would hide from the loop that the gate has
// closed.
func (r *refresher) refresh(at local.Time) {
	if _, overdue := r.overdue(at); r.opened.Load() && !overdue && local.Passes(at, local.Time(r.deadline.Load()), r.timeout) {
		r.kernel.Refresh()
		r.refreshed.Store(int64(at))
	}
}

// overdue returns how long ago the gate was last refreshed, and reports whether the gate may have
// closed in that time.
func (r *refresher) overdue(at local.Time) (late time.Duration, overdue bool) {
	late = at.Since(local.Time(r.refreshed.Load()))
	return late, late > r.timeout*4/5
}

// lapsed reports whether an open gate is overdue, and returns how long ago it was last refreshed.
// It reports each lapse only once.
func (r *refresher) lapsed(at local.Time) (late time.Duration, lapsed bool) {
	late, overdue := r.overdue(at)
	return late, r.opened.Load() && overdue && r.opened.CompareAndSwap(true, false)
}
