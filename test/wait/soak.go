package wait

import (
	"os"
	"testing"
)

// SoakVar is set in the environment by make soak, which runs for as long as it takes to meet what happens rarely.
const SoakVar = "VIPD_SOAK"

// Soaking says whether make soak runs the tests.
func Soaking() bool { return os.Getenv(SoakVar) != "" }

// Soak is how many of something a test makes whose every turn is another one (of a history, say), as Load scales it: usual
// in make test, long in make soak. The turns of the usual ones are the first of the long ones: seeds are fixed.
func Soak(usual, long int) int {
	if Soaking() {
		return Load(long)
	}
	return Load(usual)
}

// Emulated says whether this is a guest without hardware of its own, in which each case takes many times its cost.
func Emulated() bool { return cost() > 1 }

// ShownElsewhere skips a test in an emulated guest, unless make soak runs it; where says which test shows the same outside.
func ShownElsewhere(t testing.TB, where string) {
	t.Helper()
	if Emulated() && !Soaking() {
		t.Skip("make soak runs it in an emulated guest; outside " + where + " shows the same")
	}
}
