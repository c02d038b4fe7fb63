package etcd

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Hasten shortens the times of a source for tests: what it notices after seconds it notices at once.
func (s *Source) Hasten() { s.timing.hasten() }

// Hasten shortens the times of a board in the same way.
func (h *HealthBoard) Hasten() { h.timing.hasten() }

func (t *timing) hasten() {
	t.ask, t.silence = 50*time.Millisecond, 2*time.Second
	t.call, t.page = time.Second, 10*time.Second
	t.jitter, t.slowest = 20*time.Millisecond, 200*time.Millisecond
	t.refill = time.Second
	t.errorPause = time.Minute // one outage is one error, however busy the machine
	t.pageKeys, t.knock, t.proxyReread = 7, 100*time.Millisecond, 200*time.Millisecond
}

// Silence sets for how long a stream of the source may say nothing.
func (s *Source) Silence(d time.Duration) { s.timing.silence = d }

// Refill sets for how long no service may come until what a wiped etcd has counts.
func (s *Source) Refill(d time.Duration) { s.timing.refill, s.timing.longestRefill = d, d }

// Most bounds the number of keys that the source takes.
func (s *Source) Most(keys int64) { s.timing.mostKeys = keys }

// WallClock replaces the clock of the source by one whose wall time jumps by what is stored in the number, in seconds.
// What it says of time that passes stays true, as when somebody sets the clock of a host.
func (s *Source) WallClock() *atomic.Int64 {
	ahead := &atomic.Int64{}
	s.timing.now = func() time.Time { return jumped(time.Now(), ahead.Load()) }
	return ahead
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
