package daemon_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane/explain"
	"vipd/test/lab"
	"vipd/test/wait"
)

// directNode returns a node in nftables mode, and the network that connects its host with two other
// hosts.
func directNode(t *testing.T) (n *node, l *lab.Lab, hosts []*lab.NS) {
	l = lab.New(t)
	lab.Need(t, "nft", "ip")
	lan := l.Bridge("lan")
	lan.Join(l.Host(), "10.74.0.1/24", "fd74::1/64")
	for i, name := range []string{"one", "two"} {
		host := l.Add(name)
		lan.Join(host, fmt.Sprintf("10.74.0.%d/24", 11+i), fmt.Sprintf("fd74::%x/64", 11+i))
		hosts = append(hosts, host)
	}
	mode, _ := modes.Find(config.NFTablesMode)
	n = &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}, watch: 50 * time.Millisecond}
	n.cleansUp()
	return n, l, hosts
}

// silent returns the VIPs that a node holds without answering ARP requests for them.
func (n *node) silent() (all []string) {
	for _, a := range n.status().Addresses {
		if a.Silent {
			all = append(all, a.Address)
		}
	}
	return all
}

// TestRealServerDaemon starts vipd on a real server. It must hold the VIPs without answering ARP
// requests for them, and must not serve them, so a program on the host answers a gateway's client.
// When the service is removed, the VIPs must also be removed.
func TestRealServerDaemon(t *testing.T) {
	n, l, hosts := directNode(t)
	vip := netip.MustParseAddr("10.96.0.74")
	write := func(services string) {
		n.configure(`mode = "userspace"`, `mode = "nftables"`, "\n[direct]\nreal_server = true\n"+services)
	}
	write(`[services.web]
vips = ["10.96.0.74", "fd00:96::74"]
ports = [{ port = 80 }]
forward = "dr"
endpoints = [{ address = "10.74.0.1" }, { address = "fd74::1" }]
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	wait.For(t, time.Minute, "the VIPs on lo", func() bool { return len(n.silent()) == 2 })
	if addrs := l.Host().Exec("ip", "addr", "show", "dev", "lo"); !strings.Contains(addrs, "10.96.0.74/32") || !strings.Contains(addrs, "fd00:96::74/128") {
		t.Errorf("lo: addresses = %s, want the VIPs", addrs)
	}
	if frontends, err := n.client.Frontends(t.Context()); err != nil || len(frontends) > 0 {
		t.Errorf("frontends = %+v, %v, want none", frontends, err)
	}
	key := balancer.Key{Addr: vip, Port: 80, Proto: balancer.TCP}
	if e, err := n.client.Explain(t.Context(), netip.MustParseAddrPort("10.74.0.11:0"), key, false); err != nil || e.Verdict != explain.Elsewhere ||
		!strings.Contains(e.Summary, "this host is a real server of web") {
		t.Errorf("explanation = %+v, %v, want a real server", e, err)
	}
	l.Host().Echo("tcp", "program", netip.AddrPortFrom(vip, 80))
	hosts[0].Route("10.96.0.0/24", "10.74.0.1") // like a gateway, the other host sends packets for the VIPs to this host
	c, err := hosts[0].Dial(t.Context(), "tcp", key.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	if a, err := lab.Ask(c); err != nil || a.Server != "program" || a.Client.Addr().String() != "10.74.0.11" {
		t.Errorf("answer = %+v, %v, want an answer from the host's program", a, err)
	}
	_ = c.Close()
	hosts[1].Exec("ip", "route", "add", "10.96.0.0/24", "dev", "lan")
	if d, err := hosts[1].Dial(t.Context(), "tcp", key.AddrPort().String()); err == nil {
		_ = d.Close()
		t.Error("a neighbor's ARP request for the VIP was answered, want no answer")
	}
	write("")
	if _, err := n.client.Reload(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, time.Minute, "the removal of the VIPs", func() error {
		if addrs := l.Host().Exec("ip", "addr", "show", "dev", "lo"); strings.Contains(addrs, "10.96.0.74") || strings.Contains(addrs, "fd00:96::74") {
			return errors.New(addrs)
		}
		return nil
	})
}

// TestCheckDirect tests the path to two servers from a gateway. The second server answers ARP
// requests for the VIP, so both paths must report failures. No program listens on port 81.
func TestCheckDirect(t *testing.T) {
	n, _, hosts := directNode(t)
	for i, host := range hosts {
		host.AddAddr("lo", "10.96.0.74/32")
		host.Echo("tcp", host.Name, netip.MustParseAddrPort("10.96.0.74:80"))
		if i == 0 {
			host.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
			host.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		}
	}
	n.configure(`mode = "userspace"`, `mode = "nftables"`, `
[services.web]
vips = ["10.96.0.74"]
ports = [{ name = "http", port = 80 }, { name = "other", port = 81 }]
forward = "dr"
endpoints = [{ address = "10.74.0.11" }, { address = "10.74.0.12" }]
[services.nat]
vips = ["10.96.0.75"]
ports = [{ port = 80 }]
endpoints = [{ address = "10.74.0.11" }]
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	paths, err := n.client.CheckDirect(t.Context(), api.DirectRequest{Service: "web"})
	if err != nil || len(paths) != 4 {
		t.Fatalf("paths = %+v, %v, want 4: two ports of two servers", paths, err)
	}
	for _, p := range paths {
		var wrong []string
		for _, f := range p.Findings {
			if !f.OK {
				wrong = append(wrong, f.Text)
			}
		}
		text := strings.Join(wrong, "\n")
		second := p.Endpoint.String() == "10.74.0.12"
		if strings.Contains(text, "it answers ARP requests for 10.96.0.74 on lan") != second || strings.Contains(text, "another host (") == second ||
			strings.Contains(text, "refuses connections to port 81") != (p.Frontend.Port == 81) {
			t.Errorf("path to %s at %s: failures = %q, want only the expected failures", p.Frontend, p.Endpoint, text)
		}
	}
	if _, err := n.client.CheckDirect(t.Context(), api.DirectRequest{Service: "nat"}); err == nil || !strings.Contains(err.Error(), "by direct routing") {
		t.Errorf("error for a service that uses nat = %v, want an error about direct routing", err)
	}
}
