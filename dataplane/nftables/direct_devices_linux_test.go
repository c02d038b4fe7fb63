package nftables

import (
	"fmt"
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// TestDirectBridge serves a client at a port of this host's bridge. The endpoint is at another port
// of the bridge, or behind another device.
func TestDirectBridge(t *testing.T) {
	s := newSegment(t, 1)
	host := s.lab.Host()
	host.Exec("ip", "link", "add", "bridge", "type", "bridge")
	host.Exec("ip", "link", "set", "bridge", "up")
	host.AddAddr("bridge", "10.5.0.1/24")
	host.Sysctl("net.bridge.bridge-nf-call-iptables", "0") // otherwise nat would translate the packets in the bridge
	client, member := s.lab.Add("client-2"), s.lab.Add("member")
	for n, ns := range []*lab.NS{client, member} {
		s.lab.Link(host, ns, "10.9.0.1/24", fmt.Sprintf("10.5.0.%d/24", 2+n))
		host.Exec("ip", "addr", "flush", "dev", ns.Name)
		host.Exec("ip", "link", "set", ns.Name, "master", "bridge")
		ns.Default("10.5.0.1")
	}
	s.servesStacked(client, member, netip.MustParseAddr("10.5.0.3"))
}

// TestIPVSDirectVLAN serves a client in a VLAN. The endpoint is in another VLAN, or behind another
// device.
func TestIPVSDirectVLAN(t *testing.T) {
	lab.NeedIPVS(t) // its kernel also has VLANs
	s := newSegment(t, 1)
	host := s.lab.Host()
	client, member := s.lab.Add("client-2"), s.lab.Add("member")
	for n, ns := range []*lab.NS{client, member} {
		s.lab.Link(host, ns)
		for at, parent := range map[*lab.NS]string{host: ns.Name, ns: "host"} {
			at.Exec("ip", "link", "add", "link", parent, "name", parent+".5", "type", "vlan", "id", "5")
			at.Exec("ip", "link", "set", parent+".5", "up")
		}
		host.AddAddr(ns.Name+".5", fmt.Sprintf("10.%d.0.1/24", 5+n))
		ns.AddAddr("host.5", fmt.Sprintf("10.%d.0.2/24", 5+n))
		ns.Default(fmt.Sprintf("10.%d.0.1", 5+n))
	}
	s.servesStacked(client, member, netip.MustParseAddr("10.6.0.2"))
}

// servesStacked connects from the namespace client. One endpoint is server 1 in the segment, the
// other is in the namespace member. Both must answer, and see the VIP and the client's address.
func (s *segment) servesStacked(client, member *lab.NS, at netip.Addr) {
	s.Helper()
	s.lab.Host().Sysctl("net.ipv4.ip_forward", "1")
	s.servers[0].Default("10.4.0.1")
	vip := segmentVIPs[0]
	member.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
	member.Sysctl("net.ipv4.conf.all.arp_announce", "2")
	member.AddAddr("lo", vip.String()+"/32")
	member.Echo("tcp", member.Name, netip.AddrPortFrom(vip, 80))
	f := s.frontend(vip, balancer.TCP, 1)
	f.Backends = append(f.Backends, balancer.Backend{Addr: netip.AddrPortFrom(at, 80), State: balancer.Active, Weight: 1})
	s.apply(f)
	if reason := s.intact(); reason != "" {
		s.Errorf("Intact = %q, want no reason", reason)
	}
	local, answers := *s, map[string]int{}
	local.client = client
	for range 30 {
		c, a, err := local.ask(f.Key)
		if err != nil {
			s.Fatal(err)
		}
		_ = c.Close()
		if a.Local != f.Key.AddrPort() || a.Client.Addr() != netip.MustParseAddr("10.5.0.2") {
			s.Fatalf("server %s sees destination %s and source %s, want the VIP and the client", a.Server, a.Local, a.Client)
		}
		answers[a.Server]++
	}
	if answers["s1"] == 0 || answers[member.Name] == 0 {
		s.Errorf("answers = %v, want answers from both endpoints", answers)
	}
}
