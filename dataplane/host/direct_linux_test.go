package host

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

var (
	directVIP4 = netip.MustParseAddr("10.96.0.10")
	directVIP6 = netip.MustParseAddr("fd00:96::10")
)

// segment is a LAN with a client, a gateway, and two real servers. The gateway forwards packets
// without changing them. The first real server is the lab's host.
type segment struct {
	client, gateway *lab.NS
	servers         [2]*lab.NS
	options         [2]Options
}

func newSegment(t *testing.T) *segment {
	t.Helper()
	lab.Need(t, "ip", "nft", "ping")
	l := lab.New(t)
	s := &segment{client: l.Add("client"), gateway: l.Add("gateway"), servers: [2]*lab.NS{l.Host(), l.Add("server2")}}
	lan := l.Bridge("lan")
	lan.Join(s.client, "10.9.0.1/24", "fd09::1/64")
	lan.Join(s.gateway, "10.9.0.2/24", "fd09::2/64")
	for i, server := range s.servers {
		lan.Join(server, fmt.Sprintf("10.9.0.%d/24", 3+i), fmt.Sprintf("fd09::%d/64", 3+i))
		s.options[i] = options(t, xtables.Auto)
		server.Echo("tcp", fmt.Sprintf("server%d", 1+i), netip.MustParseAddrPort("[::]:80"))
	}
	t.Cleanup(func() {
		_, err := ReleaseDirect(s.options[0], nil, false)
		if err != nil {
			t.Error(err)
		}
	})
	s.gateway.Exec("nft", `table netdev dsr {
	counter replies { }
	chain i {
		type filter hook ingress device "lan" priority 0
		ip saddr 10.96.0.10 counter name replies
		ip6 saddr fd00:96::10 counter name replies
		ip daddr 10.96.0.10 fwd ip to jhash th sport mod 2 map { 0 : 10.9.0.3, 1 : 10.9.0.4 } device "lan"
		ip6 daddr fd00:96::10 fwd ip6 to jhash th sport mod 2 map { 0 : fd09::3, 1 : fd09::4 } device "lan"
	}
}`)
	return s
}

// each calls f in each real server's namespace, with that server's options.
func (s *segment) each(t *testing.T, f func(Options) error) {
	t.Helper()
	for i, server := range s.servers {
		must(t, server.Do(func() error { return f(s.options[i]) }))
	}
}

// resolves reports whether any host on the LAN answers ARP requests or neighbor solicitations for a
// VIP.
func (s *segment) resolves(t *testing.T, vip netip.Addr) bool {
	t.Helper()
	device := []string{"dev", "lan"}
	s.client.Exec("ip", append([]string{"route", "replace", netip.PrefixFrom(vip, vip.BitLen()).String()}, device...)...)
	s.client.Exec("ip", append([]string{"neigh", "flush", "to", vip.String()}, device...)...)
	answered := pings(t, s.client, vip.String())
	s.client.Exec("ip", append([]string{"route", "del", netip.PrefixFrom(vip, vip.BitLen()).String()}, device...)...)
	return answered
}

// TestDirectRouting connects a client through a gateway that forwards packets without changing
// them. Both real servers must answer the client directly, and must not answer the LAN's ARP
// requests for the VIPs.
func TestDirectRouting(t *testing.T) {
	s := newSegment(t)
	vips := []netip.Addr{directVIP4, directVIP6}
	for _, vip := range vips { // VIPs are answered until the sysctls change, which shows that the test can detect answers
		s.servers[1].Exec("ip", "addr", "add", netip.PrefixFrom(vip, vip.BitLen()).String(), "dev", map[bool]string{true: "lo", false: "lan"}[vip.Is4()])
		lab.Eventually(t, deadlineIn, "answer for "+vip.String(), func() error {
			if !s.resolves(t, vip) {
				return fmt.Errorf("no host on the LAN answers for %s", vip)
			}
			return nil
		})
		s.servers[1].Exec("ip", "addr", "del", netip.PrefixFrom(vip, vip.BitLen()).String(), "dev", map[bool]string{true: "lo", false: "lan"}[vip.Is4()])
	}
	s.each(t, func(o Options) error {
		_, problems, err := HoldDirect(o, vips)
		if len(problems) > 0 {
			t.Errorf("problems of HoldDirect = %v, want none", problems)
		}
		return err
	})
	for _, vip := range vips {
		if s.resolves(t, vip) {
			t.Errorf("a host on the LAN answers for %s", vip)
		}
		s.client.Route(netip.PrefixFrom(vip, vip.BitLen()).String(), map[bool]string{true: "10.9.0.2", false: "fd09::2"}[vip.Is4()])
		served := map[string]bool{}
		lab.Eventually(t, deadlineIn, "both servers answer for "+vip.String(), func() error {
			conn, err := s.client.Dial(t.Context(), "tcp", netip.AddrPortFrom(vip, 80).String())
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			answer, err := lab.Ask(conn)
			served[answer.Server] = true
			if len(served) < 2 {
				return fmt.Errorf("servers that answer at %s = %v, %v; want two", vip, served, err)
			}
			return err
		})
	}
	if got := s.gateway.Exec("nft", "list", "counter", "netdev", "dsr", "replies"); !strings.Contains(got, "packets 0 ") {
		t.Errorf("replies through the gateway = %s, want none", got)
	}
}

// answerARP resets ARP sysctls to the kernel's defaults, because other tests change them in the
// same namespace.
func answerARP(l *lab.Lab) {
	l.Host().Sysctl("net.ipv4.conf.all.arp_ignore", "0")
	l.Host().Sysctl("net.ipv4.conf.all.arp_announce", "0")
}

// TestDirectCommand calls HoldDirect twice, as the command does, and then ReleaseDirect. Each step
// must be reported. In the end, the host must be in its original state.
func TestDirectCommand(t *testing.T) {
	l, _ := network(t)
	answerARP(l)
	o := options(t, xtables.Auto)
	primeTools(t)
	before := dumpHost(t)
	hold := func(want []string, vips ...netip.Addr) {
		t.Helper()
		done, problems, err := HoldDirect(o, vips)
		must(t, err)
		if !slices.Equal(done, want) || len(problems) > 0 {
			t.Fatalf("HoldDirect = %q, %v; want %q", done, problems, want)
		}
	}
	hold([]string{
		"set sysctl net.ipv4.conf.all.arp_announce from 0 to 2", "set sysctl net.ipv4.conf.all.arp_ignore from 0 to 1",
		"add address 10.96.0.10 to lo",
	}, directVIP4)
	hold(nil, directVIP4)
	hold([]string{"add address fd00:96::10 to lo"}, directVIP6)
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32", "fd00:96::10/128")
	release := func(want []string, dry bool, vips ...netip.Addr) {
		t.Helper()
		done, err := ReleaseDirect(o, vips, dry)
		must(t, err)
		if !slices.Equal(done, want) {
			t.Fatalf("ReleaseDirect = %q, want %q", done, want)
		}
	}
	rest := []string{
		"remove address fd00:96::10 from lo",
		"set sysctl net.ipv4.conf.all.arp_announce back from 2 to 0", "set sysctl net.ipv4.conf.all.arp_ignore back from 1 to 0",
	}
	release([]string{"remove address 10.96.0.10 from lo"}, false, directVIP4)
	release(rest, true)
	release(rest, false)
	release(nil, false, directVIP4)
	checkUnchanged(t, before)
	if _, err := os.Stat(filepath.Join(o.RunDir, "real-server")); err == nil {
		t.Error("the command's folder still exists")
	}
	hold([]string{
		"set sysctl net.ipv4.conf.all.arp_announce from 0 to 2", "set sysctl net.ipv4.conf.all.arp_ignore from 0 to 1",
		"add address 10.96.0.10 to lo",
	}, directVIP4)
	_, err := Cleanup(t.Context(), o, false)
	must(t, err)
	checkUnchanged(t, before)
}

// TestDirectRefused tries to hold VIPs that this host must not hold: a VIP on another device, the
// host's gateway, and a VIP for which the host would answer ARP. HoldDirect must refuse each of
// them, and must change nothing.
func TestDirectRefused(t *testing.T) {
	l, _ := network(t)
	answerARP(l)
	l.Host().Default("10.1.0.2")
	l.Host().AddAddr("client", "10.96.0.11/32")
	o := options(t, xtables.Auto)
	o.ManageSysctls = false
	primeTools(t)
	before := dumpHost(t)
	for vip, reason := range map[string]string{
		"10.96.0.11": "client has the address, so this host is itself a gateway for the VIP",
		"10.1.0.2":   "it is a gateway of this node",
		"10.96.0.10": "this host would answer ARP requests for it: sysctl -w net.ipv4.conf.all.arp_ignore=1",
	} {
		done, problems, err := HoldDirect(o, []netip.Addr{netip.MustParseAddr(vip)})
		must(t, err)
		if len(done) > 0 || len(problems) == 0 || !strings.Contains(problems[0].Text, reason) {
			t.Errorf("HoldDirect(%s) = %q, %v; want only the problem %q", vip, done, problems, reason)
		}
	}
	checkUnchanged(t, before)
}

// TestDirectHost runs the engine's rounds with a VIP for which this host is a real server. The VIP
// must be on lo while it is wanted and this host is not its gateway, even after a restart. The
// guard must not close the host's ports on the VIP.
func TestDirectHost(t *testing.T) {
	l, client := network(t)
	answerARP(l)
	listen(t, 22)
	o := options(t, xtables.Auto)
	primeTools(t)
	before := dumpHost(t)
	h := newHost(t, o)
	d := balancer.Desired{Direct: snap.Map[netip.Addr, balancer.Name]{}.Set(directVIP4, "web").Set(directVIP6, "web")}
	round := func(h *Host, d balancer.Desired) {
		t.Helper()
		must(t, h.Prepare(t.Context(), d))
		must(t, h.Finish(t.Context(), d.Frontends))
	}
	repaired := func(h *Host, want string) {
		t.Helper()
		lab.Eventually(t, deadlineIn, want, func() error {
			if reason, err := h.Intact(t.Context()); err != nil || reason != want {
				return fmt.Errorf("Intact = %q, %v; want %q", reason, err, want)
			}
			return nil
		})
		round(h, d)
	}
	held := []string{"127.0.0.1/8", "::1/128", "10.96.0.10/32", "fd00:96::10/128"}
	round(h, d)
	checkDevice(t, "lo", held...)
	checkAttempt(t, client, "10.96.0.10:22", open)
	if own, _, err := h.LocalAddresses(nil); err != nil || slices.Contains(own, directVIP4) {
		t.Errorf("own addresses = %v, %v; want no VIP", own, err)
	}
	if got := holders(h); got["10.96.0.10"] != "lo" {
		t.Errorf("holders = %v, want 10.96.0.10 on lo", got)
	}

	l.Host().DelAddr("lo", "10.96.0.10/32")
	repaired(h, "address 10.96.0.10 is missing from lo")
	checkDevice(t, "lo", held...)
	l.Host().AddAddr("client", "10.96.0.10/32")
	repaired(h, "address 10.96.0.10 is now also on a device other than lo")
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "fd00:96::10/128")
	if p := h.Problems(); len(p) != 1 || p[0].Service != "web" || !strings.Contains(p[0].Text, "client has the address") {
		t.Errorf("problems = %v, want one about the VIP on the device client", p)
	}
	l.Host().DelAddr("client", "10.96.0.10/32")
	repaired(h, "address 10.96.0.10 can be added now")
	checkDevice(t, "lo", held...)

	served := desired(frontend("10.96.0.10:80"))
	served.Direct = d.Direct
	round(h, served)
	if p := h.Problems(); len(p) == 0 || !strings.Contains(p[0].Text, "so this host is itself a gateway for the VIP") {
		t.Errorf("problems = %v, want one about the served VIP", p)
	}
	checkAttempt(t, client, "10.96.0.10:22", refused)
	round(h, d)
	checkAttempt(t, client, "10.96.0.10:22", open)
	checkDevice(t, "lo", held...)
	must(t, h.Close())

	again := newHost(t, o)
	round(again, d)
	checkDevice(t, "lo", held...)
	must(t, again.Release(t.Context()))
	checkUnchanged(t, before)
}
