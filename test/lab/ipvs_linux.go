package lab

import (
	"os"
	"strings"
	"testing"

	"vipd/test/guest/vm"
	"vipd/test/ipvs"
)

// NeedIPVS skips the test unless it runs in its own host namespace, on a kernel with IPVS. It loads
// the IPVS module if possible. In the guest, it fails the test instead of skipping it. Names of
// tests that call it must begin with TestIPVS or BenchmarkIPVS, because make test selects the tests
// for the guest by their names.
func NeedIPVS(t testing.TB) {
	t.Helper()
	if name := t.Name(); !strings.HasPrefix(name, "TestIPVS") && !strings.HasPrefix(name, "BenchmarkIPVS") {
		t.Fatalf("%s needs IPVS, so its name must start with TestIPVS, or it never runs in the guest", name)
	}
	Require(t)
	err := ipvs.Load()
	switch {
	case err == nil:
	case os.Getenv(vm.GuestVar) != "":
		t.Fatal("the guest has no IPVS: ", err)
	default:
		t.Skipf("needs IPVS (%v): make test-ipvs runs it in a guest with IPVS", err)
	}
}
