package lab

import (
	"net/netip"
	"testing"
)

// TestIPVSServes configures IPVS for two servers with ipvsadm. Each server must get half of the
// connections. All other tests that need IPVS depend on this.
func TestIPVSServes(t *testing.T) {
	NeedIPVS(t)
	Need(t, "ipvsadm")
	l, client, server := routed(t)
	other := l.Add("other")
	l.Link(l.Host(), other, "10.3.0.1/24", "10.3.0.2/24", "fd03::1/64", "fd03::2/64")
	other.Default("10.3.0.1", "fd03::1")
	for _, v := range []struct{ vip, first, second string }{
		{"10.96.0.10", "10.2.0.2", "10.3.0.2"},
		{"fd96::10", "fd02::2", "fd03::2"},
	} {
		vip := netip.AddrPortFrom(netip.MustParseAddr(v.vip), 80)
		l.Host().AddAddr("lo", netip.PrefixFrom(vip.Addr(), vip.Addr().BitLen()).String())
		l.Host().Exec("ipvsadm", "-A", "-t", vip.String(), "-s", "rr")
		t.Cleanup(func() { l.Host().Exec("ipvsadm", "-D", "-t", vip.String()) })
		for name, at := range map[*NS]string{server: v.first, other: v.second} {
			to := netip.AddrPortFrom(netip.MustParseAddr(at), 8080)
			name.Echo("tcp", name.Name, to)
			l.Host().Exec("ipvsadm", "-a", "-t", vip.String(), "-r", to.String(), "-m")
		}
		got := map[string]int{}
		for range 6 {
			c, err := client.Dial(t.Context(), "tcp", vip.String())
			if err != nil {
				t.Fatal(err)
			}
			answer, err := Ask(c)
			if err != nil {
				t.Fatal(err)
			}
			if answer.Client != addrPort(c.LocalAddr()) {
				t.Errorf("%s saw %s, want the client's own address %s", answer.Server, answer.Client, c.LocalAddr())
			}
			got[answer.Server]++
			_ = c.Close()
		}
		if got["server"] != 3 || got["other"] != 3 {
			t.Errorf("%s: answers by server = %v, want 3 of each", vip, got)
		}
	}
}
