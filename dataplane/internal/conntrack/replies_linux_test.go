package conntrack

import (
	"net/netip"
	"testing"

	"vipd/balancer"
)

// TestWithReplies looks up redirected IPv4 and IPv6 flows by their replies' addresses. WithReplies
// must find each flow with its original destination, and nothing for other addresses.
func TestWithReplies(t *testing.T) {
	tab := scratch(t)
	for _, a := range []struct{ client, vip, local string }{
		{"10.1.0.2:40000", "10.96.0.1:7000", "10.1.0.1:3000"},
		{"10.1.0.2:40001", "10.96.0.1:7001", "10.1.0.1:3000"},
		{"[fd01::2]:40000", "[fd96::1]:7000", "[fd01::1]:3000"},
	} {
		client, vip, local := netip.MustParseAddrPort(a.client), netip.MustParseAddrPort(a.vip), netip.MustParseAddrPort(a.local)
		want := Flow{Proto: balancer.UDP, Orig: Tuple{client, vip}, Reply: Tuple{local, client}, Status: DstNAT}
		tab.create(t, whole, want)
		got, found, err := tab.WithReplies(balancer.UDP, Tuple{local, client})
		if !found || err != nil || got.Orig != want.Orig || got.Reply != want.Reply {
			t.Errorf("WithReplies(%s to %s) = %+v, %v, %v; want %+v", local, client, got, found, err, want)
		}
		other := netip.AddrPortFrom(client.Addr(), 9)
		if got, found, err := tab.WithReplies(balancer.UDP, Tuple{local, other}); found || err != nil {
			t.Errorf("WithReplies(%s to %s) = %+v, %v, %v; want none", local, other, got, found, err)
		}
	}
}
