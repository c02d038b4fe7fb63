package failover

import "time"

// Time is a moment of this host's CLOCK_BOOTTIME, in nanoseconds. This clock continues while the host is suspended, and is never set. Times
// of two hosts are never compared.
type Time int64

// Add returns the moment d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Since returns how long t is after u.
func (t Time) Since(u Time) time.Duration { return time.Duration(t - u) }

// Timing has the times of a session. All follow from Silence, which users set as ownership.detect.
type Timing struct {
	// Beat is the time between two heartbeats.
	Beat time.Duration `json:"beat"`
	// Confirm is how long after its sending a confirmed heartbeat keeps a session confirmed.
	Confirm time.Duration `json:"confirm"`
	// Gate is how long after a refresh the kernel's gate stays open.
	Gate time.Duration `json:"gate"`
	// Silence is how long a juror must have confirmed nothing before it votes that a session is dead.
	Silence time.Duration `json:"silence"`
}

// NewTiming returns the times for a silence. A test proves that they allow neither two owners nor a closed gate on a healthy host.
func NewTiming(silence time.Duration) Timing {
	return Timing{Beat: silence / 16, Confirm: silence * 5 / 8, Gate: silence * 5 / 16, Silence: silence}
}

// Passes reports whether the gate may be opened or refreshed at now, and an address added behind it: an action in time has no effect after
// the deadline.
func (t Timing) Passes(now, deadline Time) bool { return now < deadline.Add(-t.Gate) }
