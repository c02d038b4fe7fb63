package wait

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// SlownessVar is set in the environment to say how many times slower than usual the machine is: an emulated one, or one
// that is very busy.
const SlownessVar = "VIPD_SLOWNESS"

// CostVar is set in the environment to say how many times more work than usual everything is for the machine, where that is
// not what SlownessVar says: the clock of an emulated one may stand still while it works.
const CostVar = "VIPD_COST"

// Patience is the least that a test waits for what has to come: the bound is against hanging, and a machine with other
// work may stand still for seconds.
const Patience = 2 * time.Minute

// PatienceVar is set in the environment of tests that are to fail: what they wait for never comes, and they wait for so long
// instead of Patience ("3s").
const PatienceVar = "VIPD_PATIENCE"

// Bound is how long to wait on this machine for what has to come, and takes at most d on a usual one that is not busy.
func Bound(d time.Duration) time.Duration {
	if short, err := time.ParseDuration(os.Getenv(PatienceVar)); err == nil {
		return short
	}
	return Scaled(max(d, Patience))
}

// For asks cond until it says yes. After Bound(within) it fails the test with what, which names what did not come: "the
// third snapshot".
func For(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	within = Bound(within)
	deadline := time.Now().Add(within)
	for pause := 100 * time.Microsecond; !cond(); pause = min(2*pause, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", within, what)
		}
		time.Sleep(pause)
	}
}

// Scaled is how long to wait on this machine for what takes at most d on a usual one: d itself, or as many times d as
// SlownessVar says, a whole number.
func Scaled(d time.Duration) time.Duration { return time.Duration(factor(SlownessVar)) * d }

// Load is how many of something a test makes on this machine that makes n on a usual one, where so many would be minutes:
// n, or as many times less as CostVar says, a whole number.
func Load(n int) int { return n / cost() }

// Paced is how long a test pauses on this machine between two of what it does every d on a usual one.
func Paced(d time.Duration) time.Duration { return time.Duration(cost()) * d }

func cost() int {
	if n := factor(CostVar); n > 1 {
		return n
	}
	return factor(SlownessVar)
}

// factor is a whole number of the environment, or 1.
func factor(name string) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 1 {
		return n
	}
	return 1
}
