package failover

import (
	"time"

	"vipd/balancer/failover/local"
)

// Timing holds a session's durations. All of them are derived from Silence, which users set as
// ownership.detect.
type Timing struct {
	// Beat is the time between two heartbeats.
	Beat time.Duration `json:"beat"`
	// Confirm is how long a confirmed heartbeat keeps a session confirmed, measured from when the
	// heartbeat is sent.
	Confirm time.Duration `json:"confirm"`
	// Gate is how long the kernel's gate stays open after a refresh.
	Gate time.Duration `json:"gate"`
	// Silence is how long a session must be unconfirmed before a juror votes it dead.
	Silence time.Duration `json:"silence"`
}

// NewTiming returns the Timing for the given Silence. A test proves that it permits neither two
// owners nor a closed gate on a healthy host.
func NewTiming(silence time.Duration) Timing {
	return Timing{Beat: silence / 16, Confirm: silence * 5 / 8, Gate: silence * 5 / 16, Silence: silence}
}

// Passes reports whether at the time now, it is still early enough to open or refresh the gate, or
// to bind an address. See [local.Passes].
func (t Timing) Passes(now, deadline local.Time) bool { return local.Passes(now, deadline, t.Gate) }
