package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/inet"
	"vipd/test/lab"
)

// redirectChange changes the host's addresses while clients are connected to a VIP.
type redirectChange struct {
	name string
	// vips are the VIPs of the services. setUp adds them, and change then changes the host.
	vips   []string
	setUp  func(w *twoHosts)
	change func(w *twoHosts, d *rig)
}

func uplinkVIPs(w *twoHosts) {
	for _, a := range []string{"10.96.0.9/32", "10.96.0.8/32", "fd00:96::9/128", "fd00:96::8/128"} {
		w.Host().AddAddr("remote", a)
	}
	for _, uplink := range []string{"10.9.0.1/24", "fd00:9::1/64"} { // the uplink's other addresses must not be first
		w.Host().DelAddr("remote", uplink)
		w.Host().AddAddr("remote", uplink)
	}
	w.remote.Default("10.9.0.1", "fd00:9::1")
}

// leave deletes the services of a VIP, and then the VIP.
func leave(vip string) func(w *twoHosts, d *rig) {
	return func(w *twoHosts, d *rig) {
		d.remove(servicesOf(vip)[0].Key, servicesOf(vip)[1].Key)
		w.Host().Exec("sysctl", "-qw", "net.ipv4.conf.remote.promote_secondaries=1")
		bits := "/32"
		if strings.Contains(vip, ":") {
			bits = "/128"
		}
		w.Host().DelAddr("remote", vip+bits)
	}
}

func renumber(add, del, gateway string) func(w *twoHosts, d *rig) {
	return func(w *twoHosts, _ *rig) {
		w.Host().AddAddr("remote", add)
		w.Host().Exec("sysctl", "-qw", "net.ipv4.conf.remote.promote_secondaries=1")
		w.Host().DelAddr("remote", del)
		w.remote.Exec("ip", "route", "replace", "default", "via", gateway)
	}
}

// unnumber makes the client's link an IPv4 link on which this host has no address.
func unnumber(w *twoHosts) {
	w.Host().DelAddr("remote", "10.9.0.1/24")
	w.Host().Exec("ip", "route", "add", "10.9.0.2/32", "dev", "remote")
	w.remote.Exec("ip", "route", "replace", "10.96.0.1/32", "dev", "host", "src", "10.9.0.2")
}

// servicesOf returns a TCP and a UDP frontend of a VIP. Their backend is on this host.
func servicesOf(vip string) (all []*balancer.Frontend) {
	at := netip.MustParseAddrPort("127.0.0.1:7000")
	if strings.Contains(vip, ":") {
		at = netip.MustParseAddrPort("[::1]:7000")
	}
	for _, proto := range []string{"tcp", "udp"} {
		all = append(all, frontendAt(netip.AddrPortFrom(netip.MustParseAddr(vip), 80).String()+"/"+proto, at))
	}
	return all
}

// TestRedirectKeepsTheVIP changes addresses of this host to which the kernel's redirect would send
// clients. Connections to a VIP that remains must continue.
func TestRedirectKeepsTheVIP(t *testing.T) {
	nothing := func(*twoHosts, *rig) {}
	for _, c := range []redirectChange{
		{"another VIP of the uplink leaves", []string{"10.96.0.8", "10.96.0.9"}, uplinkVIPs, leave("10.96.0.9")},
		{"another IPv6 VIP of the uplink leaves", []string{"fd00:96::9", "fd00:96::8"}, uplinkVIPs, leave("fd00:96::8")},
		{"no IPv4 address on the uplink", []string{"10.96.0.1"}, unnumber, nothing},
		{"a new node address", []string{"10.96.0.1"}, func(*twoHosts) {}, renumber("10.9.0.3/24", "10.9.0.1/24", "10.9.0.3")},
		{"a new IPv6 node address", []string{"fd00:96::1"}, func(*twoHosts) {}, renumber("fd00:9::3/64", "fd00:9::1/64", "fd00:9::3")},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTwoHosts(t)
			for _, network := range []string{"tcp", "udp"} {
				w.Host().Echo(network, "s", netip.MustParseAddrPort("127.0.0.1:7000"))
				w.Host().Echo(network, "s", netip.MustParseAddrPort("[::1]:7000"))
			}
			c.setUp(w)
			d := redirecting(t)
			for _, vip := range c.vips {
				d.apply(servicesOf(vip)...)
			}
			var open []net.Conn
			for _, f := range servicesOf(c.vips[0]) {
				conn, err := w.remote.Dial(t.Context(), string(f.Proto), f.AddrPort().String())
				if err != nil {
					t.Fatalf("%s: error = %v, want a connection", f.Key, err)
				}
				defer conn.Close()
				if _, err := lab.Ask(conn); err != nil {
					t.Fatalf("%s: error = %v, want an answer", f.Key, err)
				}
				open = append(open, conn)
			}
			c.change(w, d)
			for _, conn := range open {
				if _, ok := conn.(*net.TCPConn); ok {
					wantEcho(t, conn)
				} else if _, err := lab.Ask(conn); err != nil {
					t.Errorf("UDP after the change: error = %v, want an answer", err)
				}
			}
		})
	}
}

// TestRedirectToTheSamePort redirects clients to the port that they want. conntrack must count
// these connections as translated, because the guard drops others.
func TestRedirectToTheSamePort(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	d.apply(w.frontendsAt(t, 80)...)
	for family, vip := range map[inet.Family]string{inet.IPv4: "10.96.0.1", inet.IPv6: "[fd00:96::1]"} {
		host := map[inet.Family]string{inet.IPv4: "10.9.0.2", inet.IPv6: "[fd00:9::2]"}[family]
		port := d.tables.(*redirect).families[family].port()
		at := netip.MustParseAddrPort(fmt.Sprintf("%s:%d", vip, port))
		for _, f := range []*balancer.Frontend{
			frontendAt(fmt.Sprintf("%s/tcp", at), netip.MustParseAddrPort(host+":7000")),
			rangeAt(fmt.Sprintf("%s:%d-%d/tcp", vip, port-1, port+1), netip.MustParseAddrPort(host+":6999")),
		} {
			d.apply(f)
			for _, from := range []*lab.NS{w.Host(), w.remote} {
				conn, err := from.Dial(t.Context(), "tcp", at.String())
				if err == nil {
					_, err = lab.Ask(conn)
				}
				if err != nil {
					t.Fatalf("%s at %s from %s: error = %v, want an answer", f.Key, at, from.Name, err)
				}
				wantTranslated(t, netip.MustParseAddrPort(conn.LocalAddr().String()), at)
				conn.Close()
			}
			d.remove(f.Key)
		}
	}
}

// wantTranslated checks that conntrack counts a client's connection to a VIP as translated.
func wantTranslated(t *testing.T, client, vip netip.AddrPort) {
	t.Helper()
	c, err := conntrack.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	found := false
	err = c.Each(t.Context(), conntrack.Filter{Family: inet.Of(vip.Addr()), Proto: balancer.TCP, Dst: vip.Addr(), Port: vip.Port()}, func(f *conntrack.Flow) error {
		found = found || f.Orig == (conntrack.Tuple{Src: client, Dst: vip}) && f.Status.Has(conntrack.DstNAT)
		return nil
	})
	if err != nil || !found {
		t.Errorf("%s to %s: translated = %t, %v; want true", client, vip, found, err)
	}
}
