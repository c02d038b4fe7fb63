package probe

import (
	"container/heap"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
)

// circle is a set of entries that may fail for the same reason. Alarms select entries in turn. The
// circle is empty if only of is set.
type circle struct {
	of      kinship
	entries []*entry // entries in no particular order
	next    int      // index of the entry whose check an alarm brought forward last
}

// kinship is the property that the entries of a circle share. Each entry is in one circle of each
// kinship.
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

// These are the maximum numbers of other targets that are checked early when one target starts to
// change. If these targets also change, they cause further early checks, so all failed targets are
// found. A single flapping target causes only a few.
const (
	maxNeighbours = 32  // targets at the same address
	maxAlike      = 16  // targets with the same check
	maxVisits     = 128 // entries that are examined to find such targets
)

// alarmLocked hurries checks of entries that may change together with e, if e has just started to
// change. Before is its former state.
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

// hurryLocked brings forward the checks of up to limit entries of a circle, to now or to the end of
// the fast interval since the latest check. It selects entries with verdict v that are not changing
// yet, and none twice within its interval, so alarms at most double the number of checks. Early
// checks use at most half of a lane, so no other check waits for them.
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
