package dataplanetest

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
	"vipd/test/lab"
)

// straight builds a layout in which servers answer clients through their own router and not through
// the host:
//
//	client --- host --- lan --- s1, s2, s3
//	  |                  |
//	  +----- router -----+
//
// The servers also have the VIP, but do not answer ARP requests for the VIP.
func straight(t testing.TB, l *lab.Lab, forward balancer.Forward) *world {
	w := newWorld(l)
	lan, router := l.Bridge("lan"), l.Add("router")
	lan.Join(w.host, "10.4.0.1/24", "fd04::1/64")
	w.own = append(w.own, netip.MustParseAddr("10.4.0.1"), netip.MustParseAddr("fd04::1"))
	lan.Join(router, "10.4.0.254/24", "fd04::254/64")
	l.Link(w.client, router, "10.5.0.2/24", "10.5.0.1/24", "fd05::2/64", "fd05::1/64")
	for _, c := range w.clients {
		router.Route(c[0].String()+"/32", "10.5.0.2")
		router.Route(c[1].String()+"/128", "fd05::2")
	}
	router.Sysctl("net.ipv4.ip_forward", "1")
	router.Sysctl("net.ipv6.conf.all.forwarding", "1")
	for i := 1; i <= serverCount; i++ {
		s := joined(l, lan, "10.4.0.", "fd04::", i)
		ns := s.ns
		ns.Default("10.4.0.254", "fd04::254")
		dev := "lo"
		if forward == balancer.TunnelForward {
			dev = unwraps(t, ns, "tunl0", "ipip")
			unwraps(t, ns, "ip6tnl0", "ip6_tunnel")
		}
		ns.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		ns.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		ns.AddAddr(dev, w.vip[0].String()+"/32")
		ns.AddAddr("lo", w.vip[1].String()+"/128")
		for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
			for _, vip := range w.vip {
				ns.Echo(string(proto), s.name, netip.AddrPortFrom(vip, vipPort))
			}
		}
		w.servers = append(w.servers, s)
	}
	return w
}

// unwraps makes a namespace decapsulate tunneled packets from any source, and returns the name of
// the tunnel device.
func unwraps(t testing.TB, n *lab.NS, dev, module string) string {
	t.Helper()
	if _, err := n.Command(t.Context(), "ip", "link", "set", dev, "up").CombinedOutput(); err != nil {
		_ = n.Command(t.Context(), "modprobe", module).Run() // an error does not matter, because the next command fails without the device
		if out, err := n.Command(t.Context(), "ip", "link", "set", dev, "up").CombinedOutput(); err != nil {
			t.Skipf("needs device %s (module %s): %v: %s", dev, module, err, out)
		}
	}
	return dev
}

// testStraight uses services with forward = "dr" and "tunnel", on a host whose policies are DROP.
// Servers must see the clients' addresses and answer directly, and conntrack must have no entries.
// Clients outside source_ranges and clients of services without endpoints must be refused or
// ignored as configured.
func testStraight(t *testing.T, s *Subject) {
	caps := s.capabilities(t)
	if !slices.Contains(caps.Forwards, balancer.DRForward) {
		t.Skipf("%s can forward only by nat", s.Name)
	}
	host := s.newHost(t)
	for _, forward := range caps.Untranslated {
		s.sub(t, string(forward), func(t *testing.T) {
			lay := layout{name: string(forward), build: func(t testing.TB, l *lab.Lab) *world { return straight(t, l, forward) }}
			r := newRig(t, s, lay, host)
			dropByPolicy(r, "INPUT", "FORWARD")
			if !caps.Stateless { // in stateless modes, a policy of DROP for OUTPUT would also drop refusals, as it does with nat
				dropByPolicy(r, "OUTPUT")
			}
			_ = netlink.ConntrackTableFlush(netlink.ConntrackTable) // earlier test cases have used the VIPs
			web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
			web.Scheduler, web.Forward = balancer.RoundRobin, forward
			for i := range web.Ports {
				web.Ports[i].TargetPort = vipPort
			}
			r.apply(web)
			r.each(func(r *rig, key balancer.Key) { checkStraightAnswers(r, key) })
			if caps.Stateless {
				r.step("changes", func(r *rig) { checkStatelessChanges(r, web) })
			} else {
				r.step("changes", func(r *rig) { checkStraightChanges(r, web) })
			}
		})
	}
}

// checkStraightAnswers checks which servers answer. It also checks that the host forwards only the
// client's packets, and not the answers.
func checkStraightAnswers(r *rig, key balancer.Key) {
	if r.caps.Stateless {
		checkHashed(r, key, "s1", "s2", "s3")
	} else {
		checkMeets(r, r.w.client, key, "s1", "s2", "s3")
	}
	a := r.mustAsk(r.w.client, key)
	if a.Local != key.AddrPort() || !hasAddress(r, r.w.client, a.Client.Addr()) {
		r.Errorf("%s: %s sees the destination %s and the source %s, want the VIP and the client", key, a.Server, a.Local, a.Client)
	}
	if key.Proto != balancer.TCP {
		return
	}
	const size = 1 << 20
	before := linkCounters(r, "lan")
	checkStream(r, r.w.client, key, zeros{}, size)
	after := linkCounters(r, "lan")
	if in, out := after.RxBytes-before.RxBytes, after.TxBytes-before.TxBytes; in > size/10 || out < size {
		r.Errorf("%s: during a stream of %d bytes and its echo, the host got %d bytes from servers and sent %d bytes to servers, want only the client's packets", key, size, in, out)
	}
}

// checkHashed sends requests to a service in a mode that chooses servers by a hash of the client.
// Over TCP, each of the named servers must answer some requests. Over UDP, the hash ignores the
// port, so the same server must always answer.
func checkHashed(r *rig, key balancer.Key, names ...string) {
	r.Helper()
	want, asks := names, 40
	if key.Proto == balancer.UDP {
		want, asks = []string{r.mustAsk(r.w.client, key).Server}, 3
	}
	got := r.tally(r.w.client, key, asks)
	for _, name := range want {
		if got[name] == 0 || len(got) != len(want) || !slices.Contains(names, name) {
			r.Errorf("%s: answers by server = %v, want answers from each of %q", key, got, want)
			return
		}
	}
}

// checkStatelessChanges changes a service while a connection is open, in a dataplane without
// connection state. The connection must survive changes to other endpoints, and must continue while
// its own endpoint drains.
func checkStatelessChanges(r *rig, web *balancer.Service) {
	key := keyOf(r.w.vip[0], vipPort, balancer.TCP)
	c := openTo(r, "s1", key)
	lives := func(when string) {
		r.Helper()
		if err := alive(c, atOnce); err != nil {
			r.Errorf("error of a connection to s1 %s = %v, want nil", when, err)
		}
	}
	checkUntracked(r)
	r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[:2]...) }))
	lives("after the removal of s3")
	checkHashed(r, key, "s1", "s2")
	r.apply(edited(web, func(s *balancer.Service) { s.SourceRanges = prefixes("198.51.100.0/24", "2001:db8::/32") }))
	r.ignored(r.w.client, netip.Addr{}, key)
	r.apply(edited(web, func(s *balancer.Service) { s.SourceRanges = prefixes("0.0.0.0/0", "::/0") }))
	lives("whose client may connect again")
	r.apply(edited(web, func(s *balancer.Service) {
		for i := range s.Endpoints {
			s.Endpoints[i].Draining = true
		}
	}))
	lives("whose endpoint drains")
	r.refused(r.w.client, key)
	r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = nil }))
	for _, k := range keysOf(r.w.vip, balancer.TCP, balancer.UDP) {
		r.refused(r.w.client, k)
	}
	r.apply(web)
	checkHashed(r, key, "s1", "s2", "s3")
}

// zeros is a reader that returns zeros, for streams whose content does not matter.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func linkCounters(r *rig, dev string) netlink.LinkStatistics {
	r.Helper()
	link, err := netlink.LinkByName(dev)
	if err != nil {
		r.Fatal(err)
	}
	return *link.Attrs().Statistics
}

// checkStraightChanges changes a service while connections are open. The connections must continue
// even if their endpoint drains or is removed, or source_ranges no longer include their client.
func checkStraightChanges(r *rig, web *balancer.Service) {
	key := keyOf(r.w.vip[0], vipPort, balancer.TCP)
	pulses := startPulses(r, r.w.vip)
	r.apply(edited(web, func(s *balancer.Service) {
		for i := range s.Endpoints {
			s.Endpoints[i].Weight = 2
		}
	}))
	c := openTo(r, "s1", key)
	checkUndisturbed(r, pulses, "a change of weights")
	checkUntracked(r)
	lives := func(when string) {
		r.Helper()
		if err := alive(c, atOnce); err != nil {
			r.Errorf("error of a connection to s1 %s = %v, want nil", when, err)
		}
	}
	r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[1:]...) }))
	lives("after its removal")
	checkMeets(r, r.w.client, key, "s2", "s3")
	r.apply(edited(web, func(s *balancer.Service) { s.SourceRanges = prefixes("198.51.100.0/24", "2001:db8::/32") }))
	r.ignored(r.w.client, netip.Addr{}, key)
	lives("that excludes its client")
	drains := edited(web, func(s *balancer.Service) {
		for i := range s.Endpoints {
			s.Endpoints[i].Draining = true
		}
	})
	for _, to := range []struct {
		answer balancer.NoEndpoints
		meets  func(from *lab.NS, key balancer.Key)
	}{{balancer.RejectClients, r.refused}, {balancer.DropClients, func(from *lab.NS, key balancer.Key) { r.ignored(from, netip.Addr{}, key) }}} {
		r.apply(edited(drains, func(s *balancer.Service) { s.NoEndpoints = to.answer }))
		to.meets(r.w.client, key)
		lives("that drains")
	}
	r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = nil }))
	for _, k := range keysOf(r.w.vip, balancer.TCP, balancer.UDP) {
		r.refused(r.w.client, k)
	}
	r.apply(web)
	checkMeets(r, r.w.client, key, "s1", "s2", "s3")
}

func checkUntracked(r *rig) {
	r.Helper()
	conn, err := conntrack.Open()
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // safe to ignore, because nothing was written to the connection
	for _, vip := range r.w.vip {
		n := 0
		if err := conn.Each(r.Context(), conntrack.Filter{Proto: balancer.TCP, Dst: vip, Port: vipPort}, func(*conntrack.Flow) error { n++; return nil }); err != nil {
			r.Fatal(err)
		}
		if n > 0 {
			r.Errorf("connections to %s in conntrack = %d, want 0", vip, n)
		}
	}
}
