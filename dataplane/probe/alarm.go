package probe

import (
	"container/heap"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
)

// circle is a set of entries that may fail for the same reason. Alarms select its entries in turn.
// The field "of" is also set if the circle is empty.
type circle struct {
	of      kinship
	entries []*entry // entries in no particular order
	next    int      // index of the last entry that an alarm has examined
}

// kinship is the property that a circle's entries share. Each entry is in one circle per kinship.
type kinship int

const (
	ofAddress kinship = iota
	ofCheck
	circles
)

func (c *circle) add(e *entry) {
	e.seats[c.of] = len(c.entries)
	c.entries = append(c.entries, e)
}

func (c *circle) remove(e *entry) {
	last := len(c.entries) - 1
	moved := c.entries[last]
	c.entries[e.seats[c.of]], moved.seats[c.of] = moved, e.seats[c.of]
	c.entries[last] = nil
	c.entries = c.entries[:last]
}

// These limits apply to the early checks of other targets when one target starts to change. If
// those targets also change, they cause more early checks, so all failed targets are found. A
// single flapping target causes only a few early checks.
const (
	maxNeighbours = 32  // targets at the same address
	maxAlike      = 16  // targets with the same check
	maxVisits     = 128 // entries that are examined to find such targets
)

// alarmLocked brings forward the checks of entries that may change together with e, if e has just
// started to change. before is e's previous state.
func (r *Runner) alarmLocked(e *entry, before health.State) {
	v := before.Verdict
	if before.Streak > 0 || v == balancer.HealthUnknown || !e.state.Turning() && e.state.Verdict == v {
		return
	}
	now := time.Now()
	r.hurryLocked(r.hosts[e.key.at.Addr()], maxNeighbours, v, now)
	r.hurryLocked(&r.probes[e.key.definition].users, maxAlike, v, now)
	r.startLocked(&r.network)
	r.startLocked(&r.programs)
}

// hurryLocked brings forward the checks of up to limit entries of a circle. They become due now, or
// after the fast interval since their latest check. It selects entries with verdict v that are not
// changing yet, and each entry at most once per interval, so alarms at most double the number of
// checks. Early checks use at most half of a lane (a queue with a concurrency limit), so other
// checks do not wait for them.
func (r *Runner) hurryLocked(c *circle, limit int, v balancer.Verdict, now time.Time) {
	for range min(len(c.entries), maxVisits) {
		c.next = (c.next + 1) % len(c.entries)
		e := c.entries[c.next]
		if e.place < 0 || e.state.Verdict != v || e.state.Turning() || now.Sub(e.hurried) < e.rules.Interval {
			continue
		}
		if e.lane.running+len(e.lane.waiting) >= e.lane.max/2 {
			continue
		}
		sooner := e.state.Expedite(e.rules, now)
		if sooner.Due.Equal(e.state.Due) {
			continue
		}
		e.state, e.hurried = sooner, sooner.Due
		if sooner.Due.After(now) {
			heap.Fix(&r.due, e.place)
		} else {
			heap.Remove(&r.due, e.place)
			e.lane.enqueue(e, now)
		}
		if limit--; limit == 0 {
			return
		}
	}
}
