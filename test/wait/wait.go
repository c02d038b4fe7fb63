package wait

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// SlownessVar is an environment variable with an integer. It says how many times slower than usual
// an emulated or busy machine is.
const SlownessVar = "VIPD_SLOWNESS"

// CostVar is an environment variable with an integer. It says how many times more CPU time than
// usual the same work needs, if that differs from SlownessVar. The clock of an emulated machine may
// pause while it works.
const CostVar = "VIPD_COST"

// Patience is the minimum time that a test waits. The limit only detects hangs, and a busy machine
// may pause for seconds.
const Patience = 2 * time.Minute

// PatienceVar is an environment variable with a duration that replaces Patience, such as "3s". It
// is for tests that are expected to fail.
const PatienceVar = "VIPD_PATIENCE"

// Bound returns how long to wait on this machine for something that needs at most d on a usual,
// idle machine.
func Bound(d time.Duration) time.Duration {
	if short, err := time.ParseDuration(os.Getenv(PatienceVar)); err == nil {
		return short
	}
	return Scaled(max(d, Patience))
}

// For polls cond until it returns true. After Bound(within) it fails the test with what, which
// names the missing result: "the third snapshot".
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

// Scaled returns how long to wait on this machine for something that needs at most d on a usual
// machine: d times the integer in SlownessVar.
func Scaled(d time.Duration) time.Duration { return time.Duration(factor(SlownessVar)) * d }

// Load returns the size of a test's load on this machine, for a load of n on a usual machine. It is
// n divided by the integer in CostVar, because the full load could take minutes here.
func Load(n int) int { return n / cost() }

// Paced returns the pause between two steps on this machine, for steps that happen every d on a
// usual machine.
func Paced(d time.Duration) time.Duration { return time.Duration(cost()) * d }

func cost() int {
	if n := factor(CostVar); n > 1 {
		return n
	}
	return factor(SlownessVar)
}

// factor returns an integer from the environment, or 1.
func factor(name string) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 1 {
		return n
	}
	return 1
}
