package etcd_test

import (
	"sync/atomic"
	"time"
	"unsafe"

	"vipd/store/etcd/client"
)

// hastened returns short intervals, changed by further functions: what a source notices after seconds it notices at once.
func hastened(change ...func(*client.Timing)) *client.Timing {
	t := client.UsualTiming()
	t.Ask, t.Silence = 50*time.Millisecond, 2*time.Second
	t.Call, t.Page = time.Second, 10*time.Second
	t.Jitter, t.Slowest = 20*time.Millisecond, 200*time.Millisecond
	t.Refill = time.Second
	t.ErrorPause = time.Minute // one outage is one error, however busy the machine
	t.PageKeys, t.CheckRights, t.ProxyReread = 7, 100*time.Millisecond, 200*time.Millisecond
	for _, c := range change {
		c(&t)
	}
	return &t
}

// silence sets for how long a stream may be behind.
func silence(d time.Duration) func(*client.Timing) { return func(t *client.Timing) { t.Silence = d } }

// refill sets for how long no service may come until what a wiped etcd has counts.
func refill(d time.Duration) func(*client.Timing) {
	return func(t *client.Timing) { t.Refill, t.LongestRefill = d, d }
}

// maxKeys bounds the number of keys that a source reads.
func maxKeys(n int64) func(*client.Timing) { return func(t *client.Timing) { t.MaxKeys = n } }

// wallClock replaces the clock by one whose wall time jumps by what is stored in the number, in seconds. What it says of time that
// passes stays true, as when somebody sets the clock of a host.
func wallClock(ahead *atomic.Int64) func(*client.Timing) {
	return func(t *client.Timing) { t.Now = func() time.Time { return jumped(time.Now(), ahead.Load()) } }
}

// jumped returns t with another wall time and the same monotonic one, which nothing but a jump of the clock makes.
func jumped(t time.Time, seconds int64) time.Time {
	// A time with a monotonic reading has its wall seconds above 30 bits of nanoseconds (time.Time in Go's time.go).
	type layout struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).wall += uint64(seconds) << 30
	return t
}
