package etcd_test

import (
	"sync/atomic"
	"time"
	"unsafe"

	"vipd/store/etcd/client"
)

// hastened returns a Timing with short intervals, so a source reacts immediately instead of after
// seconds. The functions in change can modify the result.
func hastened(change ...func(*client.Timing)) *client.Timing {
	t := client.UsualTiming()
	t.Ask, t.Silence = 50*time.Millisecond, 2*time.Second
	t.Call, t.Page = time.Second, 10*time.Second
	t.Jitter, t.Slowest = 20*time.Millisecond, 200*time.Millisecond
	t.Refill = time.Second
	t.ErrorPause = time.Minute // long, so an outage is reported only once even on a busy machine
	t.PageKeys, t.CheckRights, t.ProxyReread = 7, 100*time.Millisecond, 200*time.Millisecond
	for _, c := range change {
		c(&t)
	}
	return &t
}

// silence sets how long a stream may be silent before it counts as lost.
func silence(d time.Duration) func(*client.Timing) { return func(t *client.Timing) { t.Silence = d } }

// refill sets how long the services of a wiped etcd must be stable before they count as complete.
func refill(d time.Duration) func(*client.Timing) {
	return func(t *client.Timing) { t.Refill, t.LongestRefill = d, d }
}

// maxKeys sets the maximum number of keys that a source reads.
func maxKeys(n int64) func(*client.Timing) { return func(t *client.Timing) { t.MaxKeys = n } }

// wallClock replaces the clock with a clock whose wall time is ahead by the number of seconds in
// ahead. Its monotonic time stays correct, as after a step of a host's clock.
func wallClock(ahead *atomic.Int64) func(*client.Timing) {
	return func(t *client.Timing) { t.Now = func() time.Time { return jumped(time.Now(), ahead.Load()) } }
}

// jumped returns t with its wall time changed by the given seconds, but with the same monotonic
// time, as after a step of the clock.
func jumped(t time.Time, seconds int64) time.Time {
	// If a time has a monotonic reading, the lowest 30 bits of its wall field are nanoseconds. The
	// bits above them are seconds (see time.Time in Go's time.go).
	type layout struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).wall += uint64(seconds) << 30
	return t
}
