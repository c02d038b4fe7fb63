package etcd_test

import (
	"sync/atomic"
	"time"
	"unsafe"

	"vipd/store/etcd/client"
)

// hastened returns short intervals, which functions can change further. With them, a source reacts
// immediately instead of after seconds.
func hastened(change ...func(*client.Timing)) *client.Timing {
	t := client.UsualTiming()
	t.Ask, t.Silence = 50*time.Millisecond, 2*time.Second
	t.Call, t.Page = time.Second, 10*time.Second
	t.Jitter, t.Slowest = 20*time.Millisecond, 200*time.Millisecond
	t.Refill = time.Second
	t.ErrorPause = time.Minute // an outage causes a single error, even on a busy machine
	t.PageKeys, t.CheckRights, t.ProxyReread = 7, 100*time.Millisecond, 200*time.Millisecond
	for _, c := range change {
		c(&t)
	}
	return &t
}

// silence sets how long a stream may lag.
func silence(d time.Duration) func(*client.Timing) { return func(t *client.Timing) { t.Silence = d } }

// refill sets how long services must be stable before a wiped etcd is accepted.
func refill(d time.Duration) func(*client.Timing) {
	return func(t *client.Timing) { t.Refill, t.LongestRefill = d, d }
}

// maxKeys sets the maximum number of keys that a source reads.
func maxKeys(n int64) func(*client.Timing) { return func(t *client.Timing) { t.MaxKeys = n } }

// wallClock replaces the clock with a clock whose wall time is ahead by the stored number of
// seconds. Durations remain correct, as after a step of a host's clock.
func wallClock(ahead *atomic.Int64) func(*client.Timing) {
	return func(t *client.Timing) { t.Now = func() time.Time { return jumped(time.Now(), ahead.Load()) } }
}

// jumped returns t with another wall time but the same monotonic time, as after a step of the
// clock.
func jumped(t time.Time, seconds int64) time.Time {
	// If a time has a monotonic reading, its wall field holds the seconds above 30 bits of
	// nanoseconds (see time.Time in Go's time.go).
	type layout struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).wall += uint64(seconds) << 30
	return t
}
