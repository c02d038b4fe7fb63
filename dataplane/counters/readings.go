package counters

import (
	"sync"
	"time"
)

// Readings holds the connection counts of the kernel's rules, including removed rules. It is safe
// for concurrent use. A slow reading does not block other callers.
type Readings struct {
	mu sync.Mutex // guards the fields below
	// ended holds the counts of removed rules.
	ended *Sums[BackendKey, Count]
	// shown is the last result. due is the earliest time of the next reading.
	shown map[BackendKey]Count
	due   time.Time
}

// NewReadings returns Readings without counts.
func NewReadings() *Readings { return &Readings{ended: New(BackendKey.Whole, Count.Plus)} }

// Shown returns the last result, which must not be modified, and reports whether the kernel may be
// read again.
func (r *Readings) Shown() (shown map[BackendKey]Count, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shown, r.shown == nil || !time.Now().Before(r.due)
}

// Renew permits another reading immediately.
func (r *Readings) Renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = time.Time{}
}

// End adds the count of a removed rule.
func (r *Readings) End(k BackendKey, n uint64) {
	if n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended.Add(k, Count{All: n}, time.Now())
}

// Read processes the counts of existing rules from a reading that started at began. It returns the
// counts of existing and removed rules.
func (r *Readings) Read(live map[BackendKey]Count, began time.Time) map[BackendKey]Count {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shown, r.due = r.ended.With(live, time.Now()), NextReading(began)
	return r.shown
}
