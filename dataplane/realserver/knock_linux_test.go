package realserver

import (
	"net"
	"net/netip"
	"testing"

	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestKnock requests connections from servers with and without the VIP, and at a port without a
// listener. A request from an address in another network must get an answer only if the server's
// default route leads to this host.
func TestKnock(t *testing.T) {
	lab.Require(t)
	l := lab.New(t)
	lan := l.Bridge("lan")
	lan.Join(l.Host(), "10.4.0.1/24", "fd04::1/64")
	for i, name := range []string{"good", "back", "none"} {
		s := l.Add(name)
		lan.Join(s, netip.PrefixFrom(server("10.4.0.10", i), 24).String(), netip.PrefixFrom(server("fd04::10", i), 64).String())
		gateway := []string{"10.4.0.99", "fd04::99"}
		if name == "back" {
			gateway = []string{"10.4.0.1", "fd04::1"}
		}
		s.Default(gateway...)
		for _, vip := range []string{"10.96.0.1", "fd00:96::1"} {
			if a := netip.MustParseAddr(vip); name != "none" {
				s.AddAddr("lo", netip.PrefixFrom(a, a.BitLen()).String())
				s.Echo("tcp", name, netip.AddrPortFrom(a, 80))
			}
		}
	}
	for _, c := range []struct {
		server   int
		port     uint16
		stranger bool
		want     Answer
	}{
		{server: 0, port: 80, want: Accepted}, {server: 0, port: 81, want: Refused}, {server: 2, port: 80, want: Silence},
		{server: 0, port: 80, stranger: true, want: Silence}, {server: 1, port: 80, stranger: true, want: Accepted},
	} {
		for _, vip := range []string{"10.96.0.1", "fd00:96::1"} {
			a := netip.MustParseAddr(vip)
			own, first := netip.MustParseAddr("10.4.0.1"), "10.4.0.10"
			if a.Is6() {
				own, first = netip.MustParseAddr("fd04::1"), "fd04::10"
			}
			client := own
			if c.stranger {
				client = DocumentationAddr(a.Is4())
			}
			target := Target{Device: "lan", MAC: macOf(t, server(first, c.server)), VIP: netip.AddrPortFrom(a, c.port)}
			if got, err := Knock(t.Context(), target, client, wait.Scaled(Patience)); got != c.want || err != nil {
				t.Errorf("server %d: answer at %s to %s = %q, %v; want %q", c.server, target.VIP, client, got, err, c.want)
			}
		}
	}
}

// server returns the address of server number. first is server 0's address.
func server(first string, number int) netip.Addr {
	a := netip.MustParseAddr(first)
	for range number {
		a = a.Next()
	}
	return a
}

func macOf(t *testing.T, a netip.Addr) (mac net.HardwareAddr) {
	t.Helper()
	n, err := Resolve(t.Context(), a)
	if err == nil {
		mac, err = net.ParseMAC(n.MAC)
	}
	if err != nil {
		t.Fatalf("MAC of %s: %v", a, err)
	}
	return mac
}
