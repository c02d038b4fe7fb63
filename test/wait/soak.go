package wait

import (
	"os"
	"testing"
)

// SoakVar is an environment variable of make soak, whose long tests also cause rare events.
const SoakVar = "VIPD_SOAK"

// Soaking reports whether make soak runs the tests.
func Soaking() bool { return os.Getenv(SoakVar) != "" }

// Soak returns the number of random cases of a test, such as histories, scaled by Load: usual in
// make test, long in make soak. Seeds are fixed, so the usual cases are the first of the long
// cases.
func Soak(usual, long int) int {
	if Soaking() {
		return Load(long)
	}
	return Load(usual)
}

// Emulated reports whether this is an emulated guest, in which each case costs many times more.
func Emulated() bool { return cost() > 1 }

// ShownElsewhere skips a test in an emulated guest, unless make soak runs it. where names the test
// that covers the same behavior outside the guest.
func ShownElsewhere(t testing.TB, where string) {
	t.Helper()
	if Emulated() && !Soaking() {
		t.Skip("make soak runs it in an emulated guest; outside " + where + " shows the same")
	}
}
