package wait

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// slownessVar says how many times slower than usual the machine is: an emulated one, or a very busy one.
const slownessVar = "VIPD_SLOWNESS"

// For asks cond until it says yes. After within, which is Scaled, it fails the test with what, which names what did not
// come: "the third snapshot".
func For(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	within = Scaled(within)
	deadline := time.Now().Add(within)
	for pause := 100 * time.Microsecond; !cond(); pause = min(2*pause, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", within, what)
		}
		time.Sleep(pause)
	}
}

// Scaled is how long to wait on this machine for what takes at most d on a usual one: d itself, or as many times d as
// the environment variable VIPD_SLOWNESS says, a whole number.
func Scaled(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv(slownessVar)); err == nil && n > 1 {
		return time.Duration(n) * d
	}
	return d
}
