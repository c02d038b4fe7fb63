package failover_test

import (
	"testing"
	"time"

	"vipd/balancer/failover"
)

// TestTiming computes the other times for each Silence that users may set. The times must neither
// allow two owners nor close the gate of a healthy host.
func TestTiming(t *testing.T) {
	for silence := 400 * time.Millisecond; silence <= 10*time.Second; silence += 777 * time.Microsecond {
		n := failover.NewTiming(silence)
		switch {
		case n.Beat <= 0 || n.Gate <= 0:
			t.Errorf("Silence %s: Beat = %s, Gate = %s, want both positive", silence, n.Beat, n.Gate)
		case n.Silence < n.Confirm+n.Gate+n.Beat:
			// The gate may be refreshed later than the check before the refresh, as long as it is
			// still open. So its time counts in addition to the time of a confirmation.
			t.Errorf("Silence %s is shorter than the sum of Confirm %s, Gate %s and Beat %s", silence, n.Confirm, n.Gate, n.Beat)
		case n.Confirm <= n.Gate+3*n.Beat:
			t.Errorf("Silence %s: Confirm = %s, want more than Gate %s plus three times Beat %s; otherwise a lost heartbeat closes the gate", silence, n.Confirm, n.Gate, n.Beat)
		}
	}
}
