package dataplanetest

import (
	"net"
	"net/netip"

	"vipd/balancer"
	"vipd/test/lab"
)

// testNoEndpoints removes the endpoints of a service. Its clients must be refused immediately until
// the service has an endpoint again.
func testNoEndpoints(r *rig) { checkWithoutEndpoints(r, balancer.RejectClients, r.refused) }

// testNoEndpointsDrop is like testNoEndpoints, but with no_endpoints = "drop". Clients must get no
// answer.
func testNoEndpointsDrop(r *rig) {
	if !r.caps.DropsClients {
		r.Skipf("%s can't leave clients without an answer", r.caps.Mode)
	}
	checkWithoutEndpoints(r, balancer.DropClients, func(from *lab.NS, key balancer.Key) { r.ignored(from, netip.Addr{}, key) })
}

// checkWithoutEndpoints calls meets for each kind of client while a service has no active
// endpoints. It then adds an endpoint, which must answer the clients.
func checkWithoutEndpoints(r *rig, what balancer.NoEndpoints, meets func(from *lab.NS, key balancer.Key)) {
	empty := newService("web", r.w.vip)
	empty.NoEndpoints = what
	for i := range empty.Ports {
		empty.Ports[i].NodePort = nodePort
	}
	full := edited(empty, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[0]) })
	idle := edited(full, func(s *balancer.Service) { // the first endpoint has weight 0, and the second drains
		s.Endpoints = weightedEndpoints(r.w.servers[:2], []int{0, 1})
		for i := range s.Endpoints {
			s.Endpoints[i].Draining = s.Endpoints[i].Weight > 0
		}
	})
	for i, none := range []*balancer.Service{empty, idle} {
		r.step([]string{"none", "weight-0"}[i], func(r *rig) {
			r.apply(none)
			r.each(func(r *rig, key balancer.Key) { forVIPAndNodePort(r, key, meets) })
		})
		r.step([]string{"first", "weight-1"}[i], func(r *rig) {
			r.apply(full)
			r.each(func(r *rig, key balancer.Key) {
				forVIPAndNodePort(r, key, func(from *lab.NS, key balancer.Key) { r.mustAsk(from, key) })
			})
		})
	}
	r.step("none-again", func(r *rig) {
		r.apply(empty)
		r.each(func(r *rig, key balancer.Key) { forVIPAndNodePort(r, key, meets) })
	})
}

// forVIPAndNodePort calls f for the VIP and for the node port. It calls f for a client behind the
// host, and for a client on the host. The node port's address has the key's family.
func forVIPAndNodePort(r *rig, key balancer.Key, f func(from *lab.NS, key balancer.Key)) {
	for _, k := range []balancer.Key{key, keyOf(r.w.node.inFamilyOf(key.Addr), nodePort, key.Proto)} {
		f(r.w.client, k)
		f(r.w.host, k)
	}
}

// openTo opens connections until the server with this name answers one, and returns that
// connection.
func openTo(r *rig, name string, key balancer.Key) net.Conn {
	r.Helper()
	for range 20 * len(r.w.servers) {
		c, a := r.mustOpen(r.w.client, netip.Addr{}, key)
		if a.Server == name {
			return c
		}
		_ = c.Close()
	}
	r.Fatalf("no answer from %s at %s, want at least one", name, key)
	return nil
}
