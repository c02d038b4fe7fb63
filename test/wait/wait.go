package wait

import (
	"testing"
	"time"
)

// For asks cond until it says yes. After within it fails the test with what, which names what did not come: "the
// third snapshot".
func For(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := 100 * time.Microsecond; !cond(); pause = min(2*pause, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", within, what)
		}
		time.Sleep(pause)
	}
}
