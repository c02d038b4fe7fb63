package userspace

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// meter measures how busy a loop is.
type meter struct {
	// since is the instant of the end of the last wait; 0 means that the loop waits. The watchdog
	// reads it.
	since atomic.Int64
	// load is the part of the last period in which the loop did not wait, in percent.
	load atomic.Int64
	woke int64 // the instant of the last event

	began, waited, from int64
}

// period is the time over which the load is measured.
const period = 100 * time.Millisecond

// sleep records the start of a wait.
func (m *meter) sleep(now int64) {
	m.since.Store(0)
	m.from = now
}

// wake records the end of a wait, and reports whether a period has passed.
func (m *meter) wake(now int64) bool {
	m.since.Store(now)
	m.woke = now
	m.waited += now - m.from
	passed := now - m.began
	if passed < int64(period) {
		return false
	}
	m.load.Store(100 * (passed - m.waited) / passed) // rounded down, so a quiet loop has none
	m.began, m.waited = now, 0
	return true
}

// rest records that the loop does not run.
func (m *meter) rest() {
	m.since.Store(0)
	m.load.Store(0)
}

// slice is the time for which a loop runs before the scheduler lets others run. A short one makes
// the scheduler prefer the loop when an event arrives.
const slice = 100 * time.Microsecond

// shortenSlice sets the slice of this thread, which needs no privilege. Kernels before 6.12 have
// none.
func shortenSlice() {
	attr, err := unix.SchedGetAttr(0, 0)
	if err == nil && attr.Policy == unix.SCHED_NORMAL {
		attr.Runtime = uint64(slice)
		_ = unix.SchedSetAttr(0, attr, 0) // without it, loops are only slower when the CPU is busy
	}
}
