package realserver

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"vipd/test/lab"
)

// TestCheckClaims checks a server's path while another host answers for the VIP, and while it is
// unknown whether one does. Another host's answer must fail the check only if this host holds the
// VIP. The unknown case must also fail the check.
func TestCheckClaims(t *testing.T) {
	l := lab.New(t)
	lan := l.Bridge("lan")
	lan.Join(l.Host(), "10.4.0.1/24")
	lan.Join(l.Add("server"), "10.4.0.10/24")
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, c := range []struct {
		holds bool
		other net.HardwareAddr
		err   error
		ok    bool
		want  string
	}{
		{true, nil, nil, true, "no host on lan answers ARP requests for 10.96.0.1"},
		{true, other, nil, false, "another host (02:00:00:00:00:09) answers ARP requests for 10.96.0.1"},
		{true, nil, errors.New("the link is down"), false, ": the link is down"},
		{false, other, nil, true, "this host does not hold 10.96.0.1 now"},
	} {
		g := Gateway{
			Own:     func(string, bool) netip.Addr { return netip.MustParseAddr("10.4.0.1") },
			Holds:   func(netip.Addr) bool { return c.holds },
			Claimed: func(string, netip.Addr) (net.HardwareAddr, error) { return c.other, c.err },
		}
		found := g.Check(t.Context(), Path{VIP: netip.MustParseAddrPort("10.96.0.1:53"), Endpoint: netip.MustParseAddr("10.4.0.10")})
		if len(found) == 0 || found[0].OK != c.ok || !strings.Contains(found[0].Text, c.want) {
			t.Errorf("holds = %t, other = %v, %v: findings = %+v, want OK = %t and %q", c.holds, c.other, c.err, found, c.ok, c.want)
		}
	}
}
