package local

import "time"

// Time is a time of this host's CLOCK_BOOTTIME, in nanoseconds. This clock also runs while the host
// is suspended, and can't be set. Different hosts' Times are never compared.
type Time int64

// Add returns the time d after t.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Since returns how long t is after u.
func (t Time) Since(u Time) time.Duration { return time.Duration(t - u) }

// Passes reports whether at the time now, it is still early enough to open or refresh a gate, or to
// bind an address. A gate that stays open for the duration gate then closes before the deadline.
func Passes(now, deadline Time, gate time.Duration) bool { return now < deadline.Add(-gate) }
