package model

import "time"

// clock notices that the wall clock was set: drains and ramps are kept by it, to outlive a restart, and must not take hours
// longer, or end at once, because somebody set it. Time for which the host slept counts as a step too: nothing went on then.
type clock struct {
	began time.Time     // with both readings
	ahead time.Duration // by which the wall clock was set forward since
}

func newClock(now time.Time) clock { return clock{began: now} }

// clockStep is the least that counts: less is how far apart the two readings are taken.
const clockStep = 100 * time.Millisecond

// stepped returns by how much the wall clock was set forward since the last call (negative: back), when it says wall, and so
// much time has gone by since the beginning.
func (c *clock) stepped(wall time.Time, gone time.Duration) time.Duration {
	step := wall.Sub(c.began.Round(0)) - gone - c.ahead
	if step.Abs() < clockStep {
		return 0
	}
	c.ahead += step
	return step
}
