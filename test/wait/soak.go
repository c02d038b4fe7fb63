package wait

import "os"

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
