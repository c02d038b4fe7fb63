package probe

import (
	"container/heap"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
)

// circle is some entries that may fail for the same reason, to be gone round. The zero value but for of is empty.
type circle struct {
	of      kinship
	entries []*entry // in no order
	next    int      // whose turn it is
}

// kinship is what the entries of a circle have in common. Each entry is in one circle of each kind.
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

// What one target that begins to turn costs at most: so many others are checked early, those at its address and those
// with the same check. Each of them that turns as well has its own others checked, so that all are found out that have
// failed, whatever their number, and a target that flaps alone bothers few.
const (
	mostNeighbours = 32
	mostAlike      = 16
	mostLooks      = 128 // at entries in search of those
)

// alarmLocked has some be checked soon that may be changing with e, if that has just begun to turn. Before is how it was.
func (r *Runner) alarmLocked(e *entry, before health.State) {
	v := before.Verdict
	if before.Streak > 0 || v == balancer.HealthUnknown || !e.state.Turning() && e.state.Verdict == v {
		return
	}
	now := time.Now()
	r.hurryLocked(r.hosts[e.key.at.Addr()], mostNeighbours, v, now)
	r.hurryLocked(&r.probes[e.key.definition].users, mostAlike, v, now)
	r.beginLocked(&r.network)
	r.beginLocked(&r.programs)
}

// hurryLocked has up to most entries of a circle be checked now, or as soon as the fast interval since their latest check is
// over. Only those of the verdict v that are not turning yet are, and none again within its interval: whatever happens,
// alarms at most double the checks that there are. They take no more than half a lane, so that no other check waits for
// them.
func (r *Runner) hurryLocked(c *circle, most int, v balancer.Verdict, now time.Time) {
	for range min(len(c.entries), mostLooks) {
		c.next = (c.next + 1) % len(c.entries)
		e := c.entries[c.next]
		if e.place < 0 || e.state.Verdict != v || e.state.Turning() || now.Sub(e.hurried) < e.rules.Interval {
			continue
		}
		if e.lane.running+len(e.lane.waiting) >= e.lane.most/2 {
			continue
		}
		sooner := e.state.Sooner(e.rules, now)
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
		if most--; most == 0 {
			return
		}
	}
}
