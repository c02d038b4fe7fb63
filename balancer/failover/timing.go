package failover

import (
	"time"

	"vipd/balancer/failover/local"
)

// Timing holds the times of a session. All of them are derived from Silence, which users set as
// ownership.detect.
type Timing struct {
	// Beat is the time between two heartbeats.
	Beat time.Duration `json:"beat"`
	// Confirm is the time for which a confirmed heartbeat keeps a session confirmed. It starts when
	// the heartbeat is sent.
	Confirm time.Duration `json:"confirm"`
	// Gate is the time for which the kernel's gate stays open after a refresh.
	Gate time.Duration `json:"gate"`
	// Silence is the time without a confirmation after which a juror votes that a session is dead.
	Silence time.Duration `json:"silence"`
}

// NewTiming returns the times for a given Silence. A test proves that these times permit neither
// two owners nor a closed gate on a healthy host.
func NewTiming(silence time.Duration) Timing {
	return Timing{Beat: silence / 16, Confirm: silence * 5 / 8, Gate: silence * 5 / 16, Silence: silence}
}

// Passes reports whether it is early enough to open or refresh the gate, or to bind an address, at
// the time now. See [local.Passes].
func (t Timing) Passes(now, deadline local.Time) bool { return local.Passes(now, deadline, t.Gate) }
