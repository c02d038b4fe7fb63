package userspace

import (
	"math/rand/v2"
	"slices"
)

const (
	// spillAt is the load in percent at which a loop starts to move connections to others.
	spillAt = 85
	// gatherAt is a load in percent. If a loop and the first loop together have a lower load, the
	// loop's connections move to the first loop.
	gatherAt = 45
)

// spill holds the counts that determine how many busy connections move to another loop. Idle
// connections stay, because they cost nothing.
type spill struct {
	period int64 // the number of the current period
	steady int   // connections with events in this period and in the one before
	left   int   // connections that still have to move
	to     *loop
}

// freest returns the loop that should serve a connection that l has just accepted.
func (l *loop) freest() *loop {
	if l.meter.load.Load() < spillAt || l.d.loops.halting.Load() {
		return l
	}
	return l.d.loops.lessLoaded()
}

// lessLoaded returns the less loaded of two random loops. If it always returned the least loaded
// one, that loop would get all connections of a period.
func (s *loops) lessLoaded() *loop {
	n := len(s.all)
	i := rand.IntN(n)
	a, b := s.all[i], s.all[(i+1+rand.IntN(max(1, n-1)))%n]
	if b.meter.load.Load() < a.meter.load.Load() {
		return b
	}
	return a
}

// balance decides after each period how many connections move, and to which loop. A loop with a
// high load moves half of its busy connections to a loop with a low load. Otherwise, all its busy
// connections move to the first loop if the load there permits this.
func (l *loop) balance() {
	load, steady, first := l.meter.load.Load(), l.spill.steady, l.d.loops.all[0]
	l.spill = spill{period: l.spill.period + 1}
	if l.d.loops.halting.Load() {
		return // a halted loop appears to have no load
	}
	if load >= spillAt {
		if to := l.d.loops.lessLoaded(); to.meter.load.Load() <= load/2 {
			l.spill.left, l.spill.to = steady/2, to
		}
	} else if l != first && load+first.meter.load.Load() < gatherAt {
		l.spill.left, l.spill.to = steady, first
	}
}

// note counts a connection as steady if it also had an event in the previous period. A steady
// connection may move to another loop.
func (l *loop) note(c *conn) {
	s := &l.spill
	if c.period == s.period {
		return
	}
	steady := c.period == s.period-1
	c.period = s.period
	if !steady {
		return
	}
	s.steady++
	if s.left > 0 && l.move(c, s.to) {
		s.left--
	}
}

// move moves a connection to another loop. It returns false if the connection can't move now.
func (l *loop) move(c *conn, to *loop) bool {
	if l.d.loops.halting.Load() || c.phase != relaying || c.failing || !c.f.mu.TryLock() {
		return false
	}
	defer c.f.mu.Unlock() // unlocked last, so no other letter about the connection arrives earlier
	l.forget(c)
	l.hungry = slices.DeleteFunc(l.hungry, func(h readySide) bool { return h.c == c })
	for i := range c.sides {
		s := &c.sides[i]
		l.poller.remove(s.fd)
		s.watched, s.queued, s.readable = false, false, true
	}
	c.loop = to
	to.send(func(to *loop) { to.adopt(c) })
	return true
}
