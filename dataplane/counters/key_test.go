package counters

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestNextReading computes the pause after readings of various durations. The pause must be as
// short as the limits permit.
func TestNextReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ took, pause time.Duration }{
			{0, time.Second}, {50 * time.Millisecond, time.Second}, {time.Second, 20 * time.Second},
		} {
			began := time.Now()
			time.Sleep(c.took)
			if got := time.Until(NextReading(began)); got != c.pause {
				t.Errorf("after a reading of %v: pause = %v, want %v", c.took, got, c.pause)
			}
		}
	})
}
