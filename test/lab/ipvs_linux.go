package lab

import (
	"os"
	"strings"
	"testing"

	"vipd/test/ipvs"
)

// guestVar is in the environment of what test/guest runs.
const guestVar = "VIPD_GUEST"

// NeedIPVS skips the test unless it runs in a host namespace of its own, on a kernel with IPVS, whose module it loads
// where there is one. In the guest it does not skip but fails. The names of tests that call it begin with TestIPVS (or
// BenchmarkIPVS): so make test finds those that it runs in the guest where the machine's own kernel has no IPVS.
func NeedIPVS(t testing.TB) {
	t.Helper()
	if name := t.Name(); !strings.HasPrefix(name, "TestIPVS") && !strings.HasPrefix(name, "BenchmarkIPVS") {
		t.Fatalf("%s needs IPVS, so its name has to begin with TestIPVS: it would never run in the guest", name)
	}
	Require(t)
	err := ipvs.Load()
	switch {
	case err == nil:
	case os.Getenv(guestVar) != "":
		t.Fatal("the guest has no IPVS: ", err)
	default:
		t.Skipf("needs IPVS (%v): make test-ipvs runs it in a guest that has it", err)
	}
}
