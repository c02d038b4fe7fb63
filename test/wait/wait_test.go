package wait

import (
	"testing"
	"time"
)

func TestScaled(t *testing.T) {
	for value, want := range map[string]time.Duration{"": time.Second, "10": 10 * time.Second, "1": time.Second, "-3": time.Second, "slow": time.Second} {
		t.Setenv(SlownessVar, value)
		if got := Scaled(time.Second); got != want {
			t.Errorf("%s=%q: Scaled(1s) = %s, want %s", SlownessVar, value, got, want)
		}
	}
}

// TestLoad sets a machine's cost and slowness. Only the cost must reduce the load.
func TestLoad(t *testing.T) {
	for _, c := range []struct {
		slowness, cost string
		load           int
		pace           time.Duration
	}{
		{"", "", 100, time.Second},
		{"10", "", 10, 10 * time.Second},
		{"3", "10", 10, 10 * time.Second},
		{"", "20", 5, 20 * time.Second},
		{"4", "much", 25, 4 * time.Second},
	} {
		t.Setenv(SlownessVar, c.slowness)
		t.Setenv(CostVar, c.cost)
		if load, pace := Load(100), Paced(time.Second); load != c.load || pace != c.pace {
			t.Errorf("%s=%q %s=%q: Load(100) = %d and Paced(1s) = %s, want %d and %s",
				SlownessVar, c.slowness, CostVar, c.cost, load, pace, c.load, c.pace)
		}
	}
}
