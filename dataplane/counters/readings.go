package counters

import (
	"sync"
	"time"
)

// Readings are the connections that rules of the kernel have counted, those of rules that are gone among them. It is safe for
// several goroutines, and nobody who reads the kernel keeps others waiting.
type Readings struct {
	mu sync.Mutex // guards what follows
	// ended are of rules that are gone.
	ended *Sums[Backend, Count]
	// shown is what was last said, and due when the kernel may be read again.
	shown map[Backend]Count
	due   time.Time
}

// NewReadings returns those of rules that have counted nothing yet.
func NewReadings() *Readings { return &Readings{ended: New(Backend.Whole, Count.Plus)} }

// Shown returns what was last said, which is not changed any more, and whether the kernel may be read again.
func (r *Readings) Shown() (shown map[Backend]Count, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shown, r.shown == nil || !time.Now().Before(r.due)
}

// Renew lets the kernel be read, however soon after another reading.
func (r *Readings) Renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = time.Time{}
}

// End adds what a rule had counted that is gone.
func (r *Readings) End(k Backend, n uint64) {
	if n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended.Add(k, Count{All: n}, time.Now())
}

// Read takes in what a reading that began then has found at the rules that are there, and returns all counts.
func (r *Readings) Read(live map[Backend]Count, began time.Time) map[Backend]Count {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shown, r.due = r.ended.With(live, time.Now()), NextReading(began)
	return r.shown
}
