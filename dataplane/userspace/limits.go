package userspace

import (
	"fmt"
	"sync/atomic"
	"time"
)

// reserve returns the number of descriptors reserved for everything except connections, flows,
// listeners and pipes: files, netlink, health checks, the API and the shutdown.
func reserve(limit int) int { return min(max(limit/4, 48), 1024) }

// Reserve returns the number of descriptors that userspace mode leaves for all other uses in the
// process.
func Reserve() int { return reserve(maxDescriptors()) }

// budget counts the file descriptors in use.
type budget struct {
	limit int64
	// flows is the number of descriptors that connections leave free for flows, because flows can't
	// wait.
	flows    int64
	used     atomic.Int64
	shortage shortage
}

// shortage records when a resource that clients need was last exhausted.
type shortage struct{ last atomic.Pointer[time.Time] }

// note records that a client must wait or is reset because the resource is exhausted.
func (s *shortage) note() {
	now := time.Now()
	s.last.Store(&now)
}

// shortagePeriod is how long a shortage is reported after it last affected a client.
const shortagePeriod = time.Minute

func (s *shortage) isRecent() bool {
	last := s.last.Load()
	return last != nil && time.Since(*last) <= shortagePeriod
}

func newBudget(limit int) *budget {
	highest := maxDescriptors()
	if limit <= 0 {
		limit = highest - reserve(highest)
	}
	limit = max(limit, 2)
	return &budget{limit: int64(limit), flows: int64(min(limit/16, 256))}
}

func (b *budget) take(n int64) { b.used.Add(n) }
func (b *budget) give(n int64) { b.used.Add(-n) }

func (b *budget) room(n int64) bool { return b.used.Load()+n <= b.limit }

// lacks returns advice about a recent shortage of descriptors, or "".
func (b *budget) lacks() string {
	if !b.shortage.isRecent() {
		return ""
	}
	return fmt.Sprintf("new clients wait or are reset: all file descriptors for connections, or all of a service's share, are in use (%d, two per "+
		"connection). Raise the unit's LimitNOFILE or ulimit -n; vipctl top shows which services use them", b.limit)
}

// maxFrontendRatio is the maximum ratio between the descriptors that a frontend's connections use
// and those that are free. A single frontend gets at most four fifths of the budget, and two
// frontends get four ninths each, so some descriptors are left for the next frontend. With many
// free descriptors, the ratio has no effect.
const maxFrontendRatio = 4

// fair reports whether a frontend may use n descriptors in total.
func (b *budget) fair(n int64) bool { return n <= maxFrontendRatio*(b.limit-b.flows-b.used.Load()) }

// claim reserves descriptors for another connection to f if the budget has room, and reports
// whether it did. f is nil if the frontend is known only after the accept.
func (b *budget) claim(f *frontend) bool {
	for {
		used := b.used.Load()
		if !b.mayClaim(f) {
			b.shortage.note()
			return false
		}
		if b.used.CompareAndSwap(used, used+2) {
			return true
		}
	}
}

func (b *budget) mayClaim(f *frontend) bool {
	return b.room(2+b.flows) && (f == nil || b.fair(f.descriptors.Load()+2))
}

// backoff is a delay that doubles each time, from 1 ms to 100 ms.
type backoff struct{ next time.Duration }

// sleep waits for the next delay. It returns false if stop is closed during the wait.
func (b *backoff) sleep(stop <-chan struct{}) bool {
	b.next = min(max(2*b.next, time.Millisecond), 100*time.Millisecond)
	select {
	case <-stop:
		return false
	case <-time.After(b.next):
		return true
	}
}
