package probe

import (
	"time"

	"vipd/balancer"
)

// Late describes checks that start later than their interval permits, because the maximum number of
// concurrent checks are running.
type Late struct {
	// Programs reports whether the checks run programs. Otherwise they use the network.
	Programs bool
	// By is the delay of the last late check, and Interval its service's interval.
	By, Interval time.Duration
	// Limit is the maximum number of concurrent checks of this kind.
	Limit int
}

// lateFor is how long late checks are reported after the last one.
const lateFor = 30 * time.Second

// noteWait records how long e has waited in the lane, if the wait exceeds half of e's interval.
func (l *lane) noteWait(e *entry, now time.Time) {
	wait := now.Sub(e.queued)
	if 2*wait <= e.rules.Interval {
		return
	}
	l.late = Late{Programs: e.probe.health.Type == balancer.ExecHealth, By: wait, Interval: e.rules.Interval, Limit: l.max}
	l.lateAt = now
}

// enqueue adds e to the checks that wait in the lane.
func (l *lane) enqueue(e *entry, now time.Time) {
	e.queued = now
	l.waiting = append(l.waiting, e)
}

// Late returns an entry for each kind of checks that is late now, or was late within lateFor.
func (r *Runner) Late() (late []Late) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, l := range []*lane{&r.network, &r.programs} {
		if len(l.waiting) > 0 && r.ctx != nil {
			l.noteWait(l.waiting[0], now)
		}
		if !l.lateAt.IsZero() && now.Sub(l.lateAt) < lateFor {
			late = append(late, l.late)
		}
	}
	return late
}
