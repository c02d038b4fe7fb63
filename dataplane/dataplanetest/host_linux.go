package dataplanetest

import (
	"context"
	"os"
	"testing"

	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/test/fake"
)

// bareHost returns a host on which every VIP is a local address until the test ends. It is
// sufficient for dataplanes that terminate connections themselves.
func bareHost(t testing.TB) dataplane.Host {
	t.Helper()
	const any6 = "/proc/sys/net/ipv6/ip_nonlocal_bind" // IPv4 needs only the local route
	for i, family := range []string{"-4", "-6"} {
		run(t, "ip", family, "route", "replace", "local", vipRanges[i], "dev", "lo")
		t.Cleanup(func() { run(t, "ip", family, "route", "del", "local", vipRanges[i], "dev", "lo") })
	}
	if err := os.WriteFile(any6, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(any6, []byte("0"), 0) })
	return fake.NoHost{}
}

// GuardedHost returns a host that vipd manages, with the options o, until the test ends.
func GuardedHost(t testing.TB, o host.Options) dataplane.Host {
	t.Helper()
	h, err := host.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Release(context.Background()); err != nil {
			t.Errorf("releasing the host: %v", err)
		}
		if err := h.Close(); err != nil {
			t.Errorf("closing the host: %v", err)
		}
	})
	return h
}
