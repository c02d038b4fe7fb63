package failover

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// TestControlAddresses selects control addresses for VIPs that occupy most of a network. Control
// addresses must not be VIPs. Each must be near the VIPs, or be the documentation address.
func TestControlAddresses(t *testing.T) {
	vips := []netip.Addr{netip.MustParseAddr("2001:db8::10")}
	for i := 1; i < 250; i++ {
		vips = append(vips, netip.MustParseAddr(fmt.Sprint("192.0.2.", i)))
	}
	controls := controlsFor(vips)
	near4, near6 := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")
	var v6 int
	for _, a := range controls {
		if slices.Contains(vips, a) || a != documentation && !near4.Contains(a) && !near6.Contains(a) {
			t.Errorf("control address = %s, want one near the VIPs but not a VIP, or the documentation address", a)
		}
		if near6.Contains(a) {
			v6++
		}
	}
	if !slices.Contains(controls, documentation) || v6 != 2 || len(controls) > 5 {
		t.Errorf("control addresses = %v, want two near the IPv6 VIP, at most two near the other VIPs, and %s", controls, documentation)
	}
	if got := controlsFor(nil); len(got) != 0 {
		t.Errorf("control addresses without VIPs = %v, want none", got)
	}
}

// TestProxyARPDevices records which control addresses hosts have answered for, and detects ARP
// proxies. A host that happens to have one control address must not count as a proxy.
func TestProxyARPDevices(t *testing.T) {
	mac := func(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, n} }
	a, b := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("192.0.2.78")
	controls := []netip.Addr{a, b, documentation}
	for name, c := range map[string]struct {
		found map[netip.Addr]net.HardwareAddr
		want  bool
	}{
		"of the network":        {map[netip.Addr]net.HardwareAddr{a: mac(1), b: mac(1)}, true},
		"of everything":         {map[netip.Addr]net.HardwareAddr{documentation: mac(1)}, true},
		"a host by chance":      {map[netip.Addr]net.HardwareAddr{b: mac(1)}, false},
		"two hosts by chance":   {map[netip.Addr]net.HardwareAddr{a: mac(1), b: mac(2)}, false},
		"a host with only VIPs": {map[netip.Addr]net.HardwareAddr{netip.MustParseAddr("192.0.2.1"): mac(1)}, false},
	} {
		if got := proxiesIn(c.found, controls)[mac(1).String()]; got != c.want {
			t.Errorf("%s: counts as proxy = %v, want %v", name, got, c.want)
		}
	}
}
