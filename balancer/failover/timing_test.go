package failover_test

import (
	"testing"
	"time"

	"vipd/balancer/failover"
)

// TestTiming computes the times for each Silence that users may set. No times may allow two owners,
// or close the gate of a healthy host.
func TestTiming(t *testing.T) {
	for silence := 400 * time.Millisecond; silence <= 10*time.Second; silence += 777 * time.Microsecond {
		n := failover.NewTiming(silence)
		switch {
		case n.Beat <= 0 || n.Gate <= 0:
			t.Errorf("%s: heartbeat %s and gate %s must be positive", silence, n.Beat, n.Gate)
		case n.Silence < n.Confirm+n.Gate+n.Beat:
			// A refresh may happen later than the check before it, as long as the gate is open.
			t.Errorf("%s is shorter than confirmation %s, gate %s and heartbeat %s together", silence, n.Confirm, n.Gate, n.Beat)
		case n.Confirm <= n.Gate+3*n.Beat:
			t.Errorf("%s: confirmation %s must be longer than gate %s plus three heartbeats of %s, or each lost heartbeat closes the gate", silence, n.Confirm, n.Gate, n.Beat)
		}
	}
}
