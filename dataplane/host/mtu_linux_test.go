package host

import (
	"context"
	"strings"
	"testing"

	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// TestSegmentSizeChain changes the MTUs of links and routes. The guard must limit segments to the
// path MTU only while links or routes have different MTUs.
func TestSegmentSizeChain(t *testing.T) {
	l, _ := network(t)
	lab.Need(t, "ip")
	lab.Need(t, "nft")
	ip(t, "link add mtu0 type veth peer name mtu1")
	t.Cleanup(func() { ip(t, "link del mtu0") })
	ip(t, "link set mtu0 up")
	ip(t, "link set mtu1 up")
	o := options(t, xtables.NFT)
	o.Mode = dataplane.Needs{Forward: true}
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"))
	check := func(after string, want bool) {
		t.Helper()
		for _, family := range []string{"ip", "ip6"} {
			if got := strings.Contains(l.Host().Exec("nft", "list", "table", family, "vipd-guard"), "size set rt mtu"); got != want {
				t.Errorf("%s: path MTU rule exists (%s) = %v, want %v", after, family, got, want)
			}
		}
	}
	check("the start", false)
	for _, c := range []struct {
		do   string
		want bool
	}{
		{"link set mtu0 mtu 1400", true},
		{"link set mtu1 mtu 1400", true},
		{"link set mtu0 mtu 1500", true},
		{"link set mtu1 down", false},
		{"link set mtu1 mtu 1500", false},
		{"link set mtu1 up", false},
		{"route add 198.51.100.0/24 dev client", false},
		{"route change 198.51.100.0/24 dev client mtu 1300", true},
		{"route add 203.0.113.0/24 dev mtu0 advmss 1200", true},
		{"route del 198.51.100.0/24", true},
		{"link set mtu0 down", false}, // the kernel sends no events about the routes that this removes
		{"link set mtu0 up", false},
		{"-6 route add 2001:db8::/64 dev client mtu lock 1300", true},
		{"-6 route del 2001:db8::/64", false},
		{"route add 198.51.100.0/24 dev mtu0 hoplimit 9", false},
	} {
		ip(t, c.do)
		if reason, err := h.Intact(t.Context()); reason != "" || err != nil {
			t.Errorf("after ip %s: Intact = %q, %v; want no reason", c.do, reason, err)
		}
		check("ip "+c.do, c.want)
	}
	ip(t, "route add 203.0.113.0/24 dev mtu0 mtu 1300")
	apply(t, h, frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"))
	check("a route with an MTU, before a restart", true)
	must(t, h.Close())
	h = newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"))
	check("a restart", true)
	ip(t, "route del 203.0.113.0/24")
	if _, err := h.Intact(t.Context()); err != nil {
		t.Error(err)
	}
	check("the last change", false)

	must(t, h.Close())
	o.ClampMSS = true
	h = newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"))
	check("clamp_mss = always", true)
	must(t, h.Release(context.WithoutCancel(t.Context())))
}
