package userspace

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// meter measures how busy a loop is.
type meter struct {
	// since is the instant when the last wait ended, or zero if the loop is waiting or halted. The
	// janitor reads it.
	since atomic.Int64
	// load is the percentage of the last period that the loop did not spend waiting.
	load atomic.Int64
	woke int64 // the instant when the last wait ended

	began, waited, from int64
}

// period is the time over which the load is measured.
const period = 100 * time.Millisecond

func (m *meter) sleep(now int64) {
	m.since.Store(0)
	m.from = now
}

// wake records the end of a wait. If a period has passed, it updates the load and returns true.
func (m *meter) wake(now int64) bool {
	m.since.Store(now)
	m.woke = now
	m.waited += now - m.from
	passed := now - m.began
	if passed < int64(period) {
		return false
	}
	m.load.Store(100 * (passed - m.waited) / passed) // rounded down, so an idle loop has a load of 0
	m.began, m.waited = now, 0
	return true
}

// rest records that the loop is halted.
func (m *meter) rest() {
	m.since.Store(0)
	m.load.Store(0)
}

// slice is how long a loop runs before the kernel's scheduler lets other threads run. With a short
// slice, the scheduler prefers the loop when an event arrives.
const slice = 100 * time.Microsecond

// shortenSlice sets this thread's slice. It needs no privilege, and has no effect before Linux
// 6.12.
func shortenSlice() {
	attr, err := unix.SchedGetAttr(0, 0)
	if err == nil && attr.Policy == unix.SCHED_NORMAL {
		attr.Runtime = uint64(slice)
		_ = unix.SchedSetAttr(0, attr, 0) // if this fails, loops are only slower while the CPU is busy
	}
}
