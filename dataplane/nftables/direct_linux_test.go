package nftables

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/fake"
	"vipd/test/lab"
	"vipd/test/wait"
)

// segment is a network with a client, the host, and servers. The servers have the VIPs, but do not
// answer ARP requests for them. They reply to the client directly.
type segment struct {
	*testing.T
	lab     *lab.Lab
	lan     *lab.Bridge
	client  *lab.NS
	servers []*lab.NS
	d       *Dataplane
	applied map[balancer.Key]*balancer.Frontend
}

// These are the VIPs, and the prefixes of all other addresses in the segment. An address ends in
// the machine's number: 1 for the host, 2 for the client, and 11 or more for servers.
var (
	segmentVIPs = []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")}
	segmentNets = []string{"10.4.0.", "fd04::"}
)

func newSegment(t *testing.T, servers int) *segment {
	t.Helper()
	lab.Require(t)
	lab.Need(t, "nft", "ip")
	l := lab.New(t)
	s := &segment{T: t, lab: l, lan: l.Bridge("lan"), client: l.Add("client"), applied: map[balancer.Key]*balancer.Frontend{}}
	s.lan.Join(l.Host(), "10.4.0.1/24", "fd04::1/64")
	s.lan.Join(s.client, "10.4.0.2/24", "fd04::2/64")
	s.client.Route("10.96.0.0/24", "10.4.0.1")
	s.client.Route("fd00:96::/64", "fd04::1")
	for i := range servers {
		name := fmt.Sprintf("s%d", i+1)
		ns := l.Add(name)
		s.lan.Join(ns, fmt.Sprintf("10.4.0.%d/24", 11+i), fmt.Sprintf("fd04::%x/64", 11+i))
		ns.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		ns.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		for _, vip := range segmentVIPs {
			ns.AddAddr("lo", netip.PrefixFrom(vip, vip.BitLen()).String())
			for _, proto := range []string{"tcp", "udp"} {
				ns.Echo(proto, name, netip.AddrPortFrom(vip, 80))
			}
		}
		s.servers = append(s.servers, ns)
	}
	s.start()
	t.Cleanup(func() {
		if err := s.d.Close(context.Background(), false); err != nil {
			t.Error(err)
		}
		if out, _ := exec.Command("nft", "list", "tables").CombinedOutput(); strings.Contains(string(out), "vipd") {
			t.Errorf("tables after Close = %s, want none of vipd's tables", out)
		}
	})
	return s
}

// start opens a dataplane, which adopts the previous dataplane's tables.
func (s *segment) start() {
	s.Helper()
	d, err := New(s.options())
	if err != nil {
		s.Fatal(err)
	}
	if s.d = d; d.direct == nil {
		s.Fatal("the kernel can't forward frames")
	}
	s.repair()
}

func (s *segment) options() Options {
	return Options{Log: slog.New(slog.NewTextHandler(s.Output(), nil)), Mark: 0x8000}
}

// repair observes the tables, and applies all frontends that differ, as the engine does.
func (s *segment) repair() {
	s.Helper()
	seen, err := s.d.Observe(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	var batch []dataplane.Change
	for key, f := range s.applied {
		if seen.Digests[key] != s.d.Digest(f) || seen.ReapplyAll || len(seen.Damage) > 0 {
			batch = append(batch, dataplane.Change{Key: key, New: f})
		}
	}
	for key := range seen.Digests {
		if s.applied[key] == nil {
			batch = append(batch, dataplane.Change{Key: key})
		}
	}
	if err := s.d.Apply(s.Context(), batch); err != nil {
		s.Fatal(err)
	}
}

func (s *segment) apply(frontends ...*balancer.Frontend) {
	s.Helper()
	var batch []dataplane.Change
	for _, f := range frontends {
		batch = append(batch, dataplane.Change{Key: f.Key, New: f})
		s.applied[f.Key] = f
	}
	if err := s.d.Apply(s.Context(), batch); err != nil {
		s.Fatal(err)
	}
}

// frontend returns a frontend with forward = "dr" on port 80 of a VIP. Its endpoints are the
// servers with these numbers.
func (s *segment) frontend(vip netip.Addr, proto balancer.Protocol, servers ...int) *balancer.Frontend {
	f := fake.Frontend(netip.AddrPortFrom(vip, 80).String()+"/"+string(proto), fake.Forward(balancer.DRForward))
	f.Scheduler, f.SNAT, f.DrainTimeout = balancer.RoundRobin, balancer.NeverSNAT, time.Minute
	f.Backends = nil
	for _, n := range servers {
		f.Backends = append(f.Backends, balancer.Backend{Addr: netip.AddrPortFrom(s.address(vip, 10+n), 80), State: balancer.Active, Weight: 1})
	}
	return f
}

// address returns machine n's address, in the VIP's family.
func (s *segment) address(vip netip.Addr, n int) netip.Addr {
	if vip.Is4() {
		return netip.MustParseAddr(fmt.Sprint(segmentNets[0], n))
	}
	return netip.MustParseAddr(fmt.Sprintf("%s%x", segmentNets[1], n))
}

// all returns a frontend for each VIP and protocol.
func (s *segment) all(servers ...int) (all []*balancer.Frontend) {
	for _, vip := range segmentVIPs {
		for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
			all = append(all, s.frontend(vip, proto, servers...))
		}
	}
	return all
}

// ask opens a connection from the client. It returns the connection and the server's answer.
func (s *segment) ask(key balancer.Key) (net.Conn, lab.Answer, error) {
	ctx, cancel := context.WithTimeout(s.Context(), wait.Scaled(3*time.Second))
	defer cancel()
	c, err := s.client.Dial(ctx, string(key.Proto), key.AddrPort().String())
	if err != nil {
		return nil, lab.Answer{}, err
	}
	a, err := lab.Ask(c)
	return c, a, err
}

// tally opens n connections, and counts the answers from each server.
func (s *segment) tally(key balancer.Key, n int) map[string]int {
	s.Helper()
	all := map[string]int{}
	for range n {
		c, a, err := s.ask(key)
		if err != nil {
			s.Fatalf("%s: %v", key, err)
		}
		_ = c.Close()
		if a.Local != key.AddrPort() || a.Client.Addr() != s.address(key.Addr, 2) {
			s.Fatalf("%s: server %s sees destination %s and source %s, want the VIP and the client", key, a.Server, a.Local, a.Client)
		}
		all[a.Server]++
	}
	return all
}

// TestDirectForwarding sends requests to TCP and UDP services of both families. All servers must
// answer, and must see the VIP as the destination and the client's own address as the source.
func TestDirectForwarding(t *testing.T) {
	s := newSegment(t, 2)
	s.apply(s.all(1, 2)...)
	for key := range s.applied {
		got := s.tally(key, 40)
		if key.Proto == balancer.UDP { // with dr, a UDP client's server depends only on the client's address
			if len(got) != 1 {
				t.Errorf("%s: servers that answer = %v, want one", key, got)
			}
		} else if got["s1"] < 5 || got["s2"] < 5 {
			t.Errorf("%s: servers that answer = %v, want both", key, got)
		}
	}
	s.apply(s.all(2)...)
	for key := range s.applied {
		if got := s.tally(key, 5); got["s2"] != 5 {
			t.Errorf("after the removal of s1: %s: servers that answer = %v, want only s2", key, got)
		}
	}
}
