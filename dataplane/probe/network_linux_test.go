package probe_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestNetwork checks targets over a virtual link, with dropped packets, missing hosts, source
// addresses and marks. The result of each check must name the cause.
func TestNetwork(t *testing.T) {
	l := lab.New(t)
	server := l.Add("server")
	l.Link(l.Host(), server, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	l.Host().AddAddr("server", "10.1.0.9/24")
	server.Echo("tcp", "s4", netip.MustParseAddrPort("10.1.0.2:80"))
	server.Echo("tcp", "s6", netip.MustParseAddrPort("[fd01::2]:80"))
	server.AddAddr("lo", "10.7.0.1/32")
	l.Host().Route("10.7.0.0/16", "10.1.0.2")
	if err := server.Do(func() error { return unrouted("10.7.0.66/32") }); err != nil {
		t.Fatal(err)
	}
	quiet(t)
	for _, c := range []struct {
		name, at string
		kind     balancer.HealthType
		change   func(*balancer.Health)
		want     health.Outcome
		text     string
	}{
		{"IPv4", "10.1.0.2:80", balancer.TCPHealth, nil, health.Passed, "connected"},
		{"IPv6", "[fd01::2]:80", balancer.TCPHealth, nil, health.Passed, "connected"},
		{"refused", "10.1.0.2:81", balancer.TCPHealth, nil, health.Failed, "connection refused"},
		{"blackholed", "10.7.0.66:80", balancer.TCPHealth, nil, health.Failed, "no answer to the connection attempt within 300ms"},
		{"blackholed HTTP", "10.7.0.66:80", balancer.HTTPHealth, nil, health.Failed, "no answer to the connection attempt within 300ms"},
		{"unused address", "10.1.0.77:80", balancer.TCPHealth, func(h *balancer.Health) { h.Timeout = 10 * time.Second }, health.Failed, "host unreachable"},
		{"no route", "203.0.113.1:80", balancer.TCPHealth, nil, health.Failed, "network unreachable"},
		{"source", "10.1.0.2:80", balancer.TCPHealth, func(h *balancer.Health) { h.Source = netip.MustParseAddr("10.1.0.9") }, health.Passed, "connected"},
		{"source of other family", "[fd01::2]:80", balancer.TCPHealth, func(h *balancer.Health) { h.Source = netip.MustParseAddr("10.1.0.9") }, health.Passed, "connected"},
		{"missing source", "10.1.0.2:80", balancer.TCPHealth, func(h *balancer.Health) { h.Source = netip.MustParseAddr("10.1.0.8") }, health.NotRun, "not run: this host does not have the source address 10.1.0.8"},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, define(c.kind, c.change), netip.MustParseAddrPort(c.at), c.want, c.text) })
	}
	t.Run("source is used", func(t *testing.T) { testSource(t, server) })
	t.Run("mark is used", func(t *testing.T) { testMark(t, l) })
}

// testSource checks that a check uses the source address in its definition.
func testSource(t *testing.T, server *lab.NS) {
	var ln net.Listener
	if err := server.Do(func() (err error) { ln, err = net.Listen("tcp", "10.1.0.2:90"); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	check(t, define(balancer.TCPHealth, func(h *balancer.Health) { h.Source = netip.MustParseAddr("10.1.0.9") }), netip.MustParseAddrPort("10.1.0.2:90"), health.Passed, "connected")
	_ = ln.(*net.TCPListener).SetDeadline(time.Now().Add(wait.Patience))
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if who := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); who != netip.MustParseAddr("10.1.0.9") {
		t.Errorf("source of the check = %s, want 10.1.0.9", who)
	}
}

// testMark checks an address to which only marked packets have a route.
func testMark(t *testing.T, l *lab.Lab) {
	if err := l.Host().Do(markedRoute); err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort("10.8.0.1:80")
	check(t, define(balancer.TCPHealth, nil), at, health.Failed, "network unreachable")
	check(t, define(balancer.TCPHealth, func(h *balancer.Health) { h.Mark = 77 }), at, health.NotRun, forbidden)
}

// forbidden is the start of a result's text if this host's own rules block the target.
const forbidden = "not run: this host's own packet filter or routes forbid the connection"

// TestForbiddenTargets blocks targets with rules on this host, and then with rules on the server.
// Rules on this host are not the target's fault, so the check must count as not run. Rules on the
// server also affect clients, so the check must fail.
func TestForbiddenTargets(t *testing.T) {
	lab.Need(t, "iptables", "ip6tables")
	l := lab.New(t)
	client, server := l.Add("client"), l.Add("server")
	l.Link(client, server, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	for program, reject := range map[string]string{"iptables": "icmp-admin-prohibited", "ip6tables": "icmp6-adm-prohibited"} {
		for _, proto := range []string{"tcp", "udp"} {
			server.Exec(program, "-A", "INPUT", "-p", proto, "--dport", "90", "-j", "REJECT", "--reject-with", reject)
		}
		client.Exec(program, "-A", "OUTPUT", "-p", "udp", "--dport", "80", "-j", "DROP")
		client.Exec(program, "-A", "OUTPUT", "-p", "udp", "--dport", "81", "-j", "REJECT")
	}
	server.Sysctl("net.ipv6.icmp.ratelimit", "0") // makes the server send an ICMP error for every check
	if err := client.Do(func() error { return errors.Join(prohibited("10.8.0.1/32"), prohibited("fd08::1/128")) }); err != nil {
		t.Fatal(err)
	}
	quiet(t)
	tcp := define(balancer.TCPHealth, func(h *balancer.Health) { h.Timeout = 10 * time.Second }) // with IPv6, only the reply to the second packet reports the error
	udp := define(balancer.UDPHealth, func(h *balancer.Health) { h.Send = "ping" })
	dns := define(balancer.DNSHealth, func(h *balancer.Health) { h.Query = "ok.example" })
	for _, c := range []struct {
		ports  []string
		checks []*balancer.Health
		want   health.Outcome
		text   string
	}{
		{[]string{"10.1.0.2:80", "10.1.0.2:81", "[fd01::2]:80", "[fd01::2]:81"}, []*balancer.Health{udp, dns}, health.NotRun, forbidden + " (operation not permitted)"},
		{[]string{"10.8.0.1:80", "[fd08::1]:80"}, []*balancer.Health{tcp, udp, dns}, health.NotRun, forbidden + " (permission denied)"},
		{[]string{"10.1.0.2:90", "[fd01::2]:90"}, []*balancer.Health{tcp, udp, dns}, health.Failed, "host unreachable"},
	} {
		for _, at := range c.ports {
			for _, h := range c.checks {
				t.Run(string(h.Type)+" "+at, func(t *testing.T) {
					proto := balancer.UDP
					if h.Type == balancer.TCPHealth {
						proto = balancer.TCP
					}
					if err := client.Do(func() error {
						checkOver(t, h, proto, netip.MustParseAddrPort(at), c.want, c.text)
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

// TestOutOfDescriptors runs a check when no file descriptor is free. This is not the target's
// fault, so the check must count as not run.
func TestOutOfDescriptors(t *testing.T) {
	at := serve(t, stuck)
	check(t, define(balancer.TCPHealth, nil), at, health.Passed, "connected")
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	var got health.Result
	for range 100 { // repeated, because the end of an earlier check may free a lower descriptor
		fd, err := unix.Dup(0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		none := old
		none.Cur = uint64(fd) // all descriptors below this number are in use
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
			t.Fatal(err)
		}
		got = newProbe(define(balancer.TCPHealth, nil), balancer.TCP).Check(t.Context(), at)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
		if got.Outcome != health.Passed {
			break
		}
	}
	if got.Outcome != health.NotRun || !strings.HasPrefix(got.Text, "not run: this host is out of resources") {
		t.Errorf("result = %s: %s, want not run", got.Outcome, got.Text)
	}
}
