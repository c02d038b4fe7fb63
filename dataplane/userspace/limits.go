package userspace

import (
	"fmt"
	"sync/atomic"
	"time"
)

// reserve is what is left for everything that is not a connection, flow, listener or pipe: files, netlink, health checks, the API, and
// those that are kept for the end.
func reserve(limit int) int { return min(max(limit/4, 48), 1024) }

// Reserve is how many descriptors userspace mode leaves to the rest of the process.
func Reserve() int { return reserve(maxDescriptors()) }

// budget counts descriptors in use.
type budget struct {
	limit int64
	// flows is what connections leave for flows: they wait for room, which flows can't.
	flows    int64
	used     atomic.Int64
	shortage shortage
}

// shortage is when something last was used up that clients need.
type shortage struct{ last atomic.Pointer[time.Time] }

// note remembers that a client has to wait, or is reset, because nothing is left.
func (s *shortage) note() {
	now := time.Now()
	s.last.Store(&now)
}

// shortagePeriod is how long a shortage is reported after the last client that suffered from it.
const shortagePeriod = time.Minute

// isRecent reports whether the shortage must be reported.
func (s *shortage) isRecent() bool {
	last := s.last.Load()
	return last != nil && time.Since(*last) <= shortagePeriod
}

func newBudget(limit int) *budget {
	most := maxDescriptors()
	if limit <= 0 {
		limit = most - reserve(most)
	}
	limit = max(limit, 2)
	return &budget{limit: int64(limit), flows: int64(min(limit/16, 256))}
}

func (b *budget) take(n int64) { b.used.Add(n) }
func (b *budget) give(n int64) { b.used.Add(-n) }

// room reports whether n more are within the budget.
func (b *budget) room(n int64) bool { return b.used.Load()+n <= b.limit }

// lacks returns what to do about a recent shortage of descriptors, or "".
func (b *budget) lacks() string {
	if !b.shortage.isRecent() {
		return ""
	}
	return fmt.Sprintf("new clients wait or are reset, as all descriptors for connections, or a service's share of them, are in use (there are %d, two a connection): "+
		"raise LimitNOFILE of the unit, or ulimit -n; vipctl top shows which service has them", b.limit)
}

// greed is how many times what is left the connections of one frontend may hold. So one frontend alone gets at most four
// fifths of the budget, two get four ninths each, and the next frontend finds something left, whatever the clients of
// others do. Where there is plenty, it does not bind.
const greed = 4

// fair reports whether a frontend may hold as many as n.
func (b *budget) fair(n int64) bool { return n <= greed*(b.limit-b.flows-b.used.Load()) }

// wait returns when there is room for a connection of f, which is nil where that is not known before it is accepted;
// false: stop was closed first.
func (b *budget) wait(f *frontend, stop <-chan struct{}) bool {
	slower := backoff{}
	for !b.room(2+b.flows) || f != nil && !b.fair(f.descriptors.Load()+2) {
		b.shortage.note()
		if !slower.sleep(stop) {
			return false
		}
	}
	return true
}

// claim takes the descriptors of a connection of f that is accepted: when there is room, and at once when stop is closed or open
// says no, as use then ends the connection, hands it over, or carries it as the last of its listener.
func (b *budget) claim(f *frontend, stop <-chan struct{}, open func() bool) {
	slower := backoff{}
	for !b.tryClaim(f) {
		b.shortage.note()
		if !slower.sleep(stop) || !open() {
			b.take(2)
			return
		}
	}
}

// tryClaim takes them if there is room. All listeners ask at once.
func (b *budget) tryClaim(f *frontend) bool {
	for {
		used := b.used.Load()
		if used+2+b.flows > b.limit || f != nil && !b.fair(f.descriptors.Load()+2) {
			return false
		}
		if b.used.CompareAndSwap(used, used+2) {
			return true
		}
	}
}

// backoff is a growing wait: from 1 ms, doubling to 100 ms.
type backoff struct{ next time.Duration }

// sleep waits the next time; false: stop was closed first.
func (b *backoff) sleep(stop <-chan struct{}) bool {
	b.next = min(max(2*b.next, time.Millisecond), 100*time.Millisecond)
	select {
	case <-stop:
		return false
	case <-time.After(b.next):
		return true
	}
}
