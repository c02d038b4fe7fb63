package failover_test

import (
	"testing"
	"time"

	"vipd/balancer/failover"
)

// TestTiming computes the Timing for each Silence that users may set. The result must neither allow
// two owners nor close a healthy host's gate.
func TestTiming(t *testing.T) {
	for silence := 400 * time.Millisecond; silence <= 10*time.Second; silence += 777 * time.Microsecond {
		n := failover.NewTiming(silence)
		switch {
		case n.Beat <= 0 || n.Gate <= 0:
			t.Errorf("Silence %s: Beat = %s, Gate = %s, want both positive", silence, n.Beat, n.Gate)
		case n.Silence < n.Confirm+n.Gate+n.Beat:
			// A refresh may be delayed after its check of the deadline for as long as the gate is
			// still open. So Gate counts in addition to Confirm.
			t.Errorf("Silence %s is shorter than the sum of Confirm %s, Gate %s and Beat %s", silence, n.Confirm, n.Gate, n.Beat)
		case n.Confirm <= n.Gate+3*n.Beat:
			t.Errorf("Silence %s: Confirm = %s, want more than Gate %s plus three times Beat %s; otherwise a lost heartbeat closes the gate", silence, n.Confirm, n.Gate, n.Beat)
		}
	}
}
