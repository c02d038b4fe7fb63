package dataplane_test

import (
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
)

// TestDigestEveryField changes each field of a frontend and of its backend. Each change must affect
// the result of DigestOf and of Equal.
func TestDigestEveryField(t *testing.T) {
	base := func() *balancer.Frontend {
		return &balancer.Frontend{Backends: []balancer.Backend{{State: balancer.Active, Weight: 1}}}
	}
	want := dataplane.DigestOf(base())
	check := func(name string, f *balancer.Frontend) {
		t.Helper()
		if dataplane.DigestOf(f) == want {
			t.Errorf("DigestOf is unchanged after a change to %s, want another digest", name)
		}
		if f.Equal(base()) {
			t.Errorf("after a change to %s: Equal = true, want false", name)
		}
	}
	for name, f := range dataplanetest.Changed(t, base) {
		if name != "Backend.Failing" { // only the guard uses it
			check(name, f)
		}
	}
	for _, k := range []balancer.Key{{Port: 1}, {Proto: balancer.UDP}, {Addr: netip.MustParseAddr("::")}} {
		f := base()
		f.Key = k
		check("key "+k.String(), f)
	}
	// Service and Port together contain "cab" in both frontends, but split differently.
	a, b := base(), base()
	a.Port, a.Service = "ab", "c"
	b.Port, b.Service = "b", "ca"
	if dataplane.DigestOf(a) == dataplane.DigestOf(b) {
		t.Error("two different frontends have the same digest, want different digests")
	}
}
