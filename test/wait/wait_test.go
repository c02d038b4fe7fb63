package wait

import (
	"testing"
	"time"
)

func TestScaled(t *testing.T) {
	for value, want := range map[string]time.Duration{"": time.Second, "10": 10 * time.Second, "1": time.Second, "-3": time.Second, "slow": time.Second} {
		t.Setenv(SlownessVar, value)
		if got := Scaled(time.Second); got != want {
			t.Errorf("%s=%q: a second is %s, want %s", SlownessVar, value, got, want)
		}
	}
}
