package dataplanetest

import (
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// seen describes whose address a server sees as its client's address.
type seen string

const (
	// seenClient is the client's own address.
	seenClient seen = "the client's"
	// seenHost is one of the host's own addresses, which do not include the VIPs that vipd has
	// added.
	seenHost seen = "the host's"
)

// clientKind is a way to reach a service. It determines which client address a server should see.
type clientKind struct {
	name string
	// from returns the clients' namespaces.
	from func(w *world) []*lab.NS
	// port is the service's port at the VIP, or nodePort, a port at the host's own address.
	port uint16
	// shows returns whose address the answering server must see if the dataplane can keep the
	// client's address and snat is "auto". Servers must see the host's address for the host's own
	// connections, and for all connections if the dataplane never keeps the client's address.
	shows func(lay layout, from *lab.NS, answer lab.Answer) seen
}

func clientKinds() []clientKind {
	client := func(w *world) []*lab.NS { return []*lab.NS{w.client} }
	host := func(w *world) []*lab.NS { return []*lab.NS{w.host} }
	always := func(s seen) func(layout, *lab.NS, lab.Answer) seen {
		return func(layout, *lab.NS, lab.Answer) seen { return s }
	}
	unlessSameLink := func(lay layout, _ *lab.NS, _ lab.Answer) seen {
		if lay.sameLink {
			return seenHost
		}
		return seenClient
	}
	return []clientKind{
		{"forwarded", client, vipPort, unlessSameLink},
		{"local", host, vipPort, always(seenHost)},
		{"node-port", client, nodePort, always(seenHost)},
		{"local-node-port", host, nodePort, always(seenHost)},
		{"hairpin", servers, vipPort, func(lay layout, from *lab.NS, a lab.Answer) seen {
			if lay.sameLink || a.Server == from.Name {
				return seenHost
			}
			return seenClient
		}},
	}
}

func servers(w *world) []*lab.NS {
	var all []*lab.NS
	for _, s := range w.servers {
		all = append(all, s.ns)
	}
	return all
}

// testLayouts sends requests from each kind of client in each layout. Each server must answer, and
// must see the expected source address.
func testLayouts(t *testing.T, s *Subject) {
	host := s.newHost(t)
	for _, lay := range layouts() {
		s.sub(t, lay.name, func(t *testing.T) {
			r := newRig(t, s, lay, host)
			r.apply(roundRobinService(r, lay.snat))
			checkEveryClientKind(r, lay)
		})
	}
}

// roundRobinService returns a service with node ports that sends connections to each server in
// turn.
func roundRobinService(r *rig, snat balancer.SNAT) *balancer.Service {
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	web.Scheduler, web.SNAT = balancer.RoundRobin, snat
	for i := range web.Ports {
		web.Ports[i].NodePort = nodePort
	}
	return web
}

func checkEveryClientKind(r *rig, lay layout) {
	for _, kind := range clientKinds() {
		if kind.name == "hairpin" && lay.noHairpin {
			continue
		}
		r.step(kind.name, func(r *rig) {
			r.each(func(r *rig, key balancer.Key) { checkReachesAll(r, lay, kind, key) })
		})
	}
}

// checkReachesAll sends as many requests as one round robin cycle has servers. Each server must
// answer once, and must see the expected source address.
func checkReachesAll(r *rig, lay layout, kind clientKind, key balancer.Key) {
	if key.Port = balancer.PortRange(kind.port); key.Port == nodePort {
		key.Addr = r.w.node.inFamilyOf(key.Addr)
	}
	for _, from := range kind.from(r.w) {
		met := map[string]int{}
		for range r.w.servers {
			a := r.mustAsk(from, key)
			met[a.Server]++
			checkSourceAddress(r, lay, kind, from, key, a)
		}
		if len(met) != len(r.w.servers) {
			r.Errorf("%s asks %s: answers from %v, want answers from all %d servers", from.Name, key, met, len(r.w.servers))
		}
	}
}

func checkSourceAddress(r *rig, lay layout, kind clientKind, from *lab.NS, key balancer.Key, a lab.Answer) {
	r.Helper()
	want := kind.shows(lay, from, a)
	switch {
	case !r.caps.KeepsSource, lay.snat == balancer.AlwaysSNAT, from == r.w.host:
		want = seenHost
	case lay.snat == balancer.NeverSNAT:
		want = seenClient
	}
	switch {
	case want == seenHost && !r.w.isOwn(a.Client.Addr()):
		r.Errorf("%s asks %s: %s sees %s, want one of the host's own addresses", from.Name, key, a.Server, a.Client.Addr())
	case want == seenClient && (r.w.isOwn(a.Client.Addr()) || !hasAddress(r, from, a.Client.Addr())):
		r.Errorf("%s asks %s: %s sees %s, want the client's own address", from.Name, key, a.Server, a.Client.Addr())
	}
}

// hasAddress reports whether a is an address of from, which is a client's or a server's namespace.
func hasAddress(r *rig, from *lab.NS, a netip.Addr) bool {
	return from == r.w.client && slices.ContainsFunc(r.w.clients, func(c addrs) bool { return c.inFamilyOf(a) == a }) ||
		slices.ContainsFunc(r.w.servers, func(s *server) bool { return s.ns == from && s.addr.inFamilyOf(a) == a })
}

// testPorts defines services with several VIPs and ports, two of which share a VIP. Each port's
// clients must reach the port's service.
func testPorts(r *rig) {
	s1, s2, s3 := r.w.servers[0], r.w.servers[1], r.w.servers[2]
	one := newService("one", vipN(20), endpoints(s1)...)
	one.VIPs = append(vipN(20).slice(), vipN(21).slice()...)
	for _, p := range one.Ports[:2] {
		p.Name, p.Port = p.Name+"-alt", 8081
		one.Ports = append(one.Ports, p)
	}
	two := newService("two", vipN(20), endpoints(s2)...) // the same VIP with other ports
	for i := range two.Ports {
		two.Ports[i].Port = 81
	}
	three := newService("three", vipN(22), endpoints(s3)...)
	three.Ports = three.Ports[:1] // the third service has no UDP port
	r.apply(one, two, three)
	r.each(func(r *rig, key balancer.Key) {
		expect := func(vip addrs, port uint16, want string) {
			r.Helper()
			k := keyOf(vip.inFamilyOf(key.Addr), port, key.Proto)
			if got := r.mustAsk(r.w.client, k).Server; got != want {
				r.Errorf("server that answers at %s = %s, want %s", k, got, want)
			}
		}
		expect(vipN(20), 80, "s1")
		expect(vipN(20), 8081, "s1")
		expect(vipN(21), 80, "s1")
		expect(vipN(21), 8081, "s1")
		expect(vipN(20), 81, "s2")
		if key.Proto == balancer.TCP {
			expect(vipN(22), 80, "s3")
		} else {
			r.refused(r.w.client, keyOf(vipN(22).inFamilyOf(key.Addr), 80, key.Proto))
		}
	})
}

func (p addrs) slice() []netip.Addr { return p[:] }
