package dataplanetest

import (
	"net"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/test/lab"
)

// testNoEndpoints has clients of a service without endpoints told no at once, until it has some.
func testNoEndpoints(r *rig) {
	empty := newService("web", r.w.vip)
	for i := range empty.Ports {
		empty.Ports[i].NodePort = nodePort
	}
	full := edited(empty, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[0]) })
	idle := edited(full, func(s *balancer.Service) { s.Endpoints = weighted(r.w.servers[:1], []int{0}) })
	for i, none := range []*balancer.Service{empty, idle} {
		r.step([]string{"none", "weight-0"}[i], func(r *rig) {
			r.apply(none)
			r.each(func(r *rig, key balancer.Key) { r.atBoth(key, r.refused) })
		})
		r.step([]string{"first", "weight-1"}[i], func(r *rig) {
			r.apply(full)
			r.each(func(r *rig, key balancer.Key) {
				r.atBoth(key, func(from *lab.NS, key balancer.Key) { r.mustAsk(from, key) })
			})
		})
	}
	r.step("none-again", func(r *rig) {
		r.apply(empty)
		r.each(func(r *rig, key balancer.Key) { r.atBoth(key, r.refused) })
	})
}

// atBoth calls f for the VIP and the node port of key's address family, from a forwarded client and from the host.
func (r *rig) atBoth(key balancer.Key, f func(from *lab.NS, key balancer.Key)) {
	for _, k := range []balancer.Key{key, keyOf(r.w.node.of(key.Addr), nodePort, key.Proto)} {
		f(r.w.client, k)
		f(r.w.host, k)
	}
}

// testNoEndpointsDrop is the same for services that leave clients without any answer.
func testNoEndpointsDrop(r *rig) {
	if !r.caps.DropsClients {
		r.Skipf("%s can't leave clients without an answer", r.caps.Mode)
	}
	empty := newService("web", r.w.vip)
	empty.NoEndpoints = balancer.DropClients
	full := edited(empty, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[0]) })
	r.step("none", func(r *rig) {
		r.apply(empty)
		r.each(func(r *rig, key balancer.Key) {
			r.ignored(r.w.client, netip.Addr{}, key)
			r.ignored(r.w.host, netip.Addr{}, key)
		})
	})
	r.step("first", func(r *rig) {
		r.apply(full)
		r.each(func(r *rig, key balancer.Key) {
			r.mustAsk(r.w.client, key)
			r.mustAsk(r.w.host, key)
		})
	})
}

// testEndpointRemoved has new connections avoid an endpoint that leaves, in each way that it can, while those that it
// has live on; and has it take new ones when it is back.
func testEndpointRemoved(r *rig) {
	all := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	all.Scheduler = balancer.RoundRobin
	first := func(s *balancer.Service, edit func(*balancer.Endpoint)) {
		for i := range s.Endpoints {
			if slices.Contains(r.w.servers[0].addr[:], s.Endpoints[i].Address) {
				edit(&s.Endpoints[i])
			}
		}
	}
	ways := []struct {
		name  string
		leave func(s *balancer.Service)
	}{
		{"removed", func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[1:]...) }},
		{"weight-0", func(s *balancer.Service) { first(s, func(e *balancer.Endpoint) { e.Weight = 0 }) }},
		{"draining", func(s *balancer.Service) { first(s, func(e *balancer.Endpoint) { e.Draining = true }) }},
		{"backup", func(s *balancer.Service) { first(s, func(e *balancer.Endpoint) { e.Backup = true }) }},
	}
	for _, way := range ways {
		r.step(way.name, func(r *rig) {
			r.apply(all)
			established := map[balancer.Key]net.Conn{}
			for _, vip := range r.w.vip {
				key := keyOf(vip, vipPort, balancer.TCP)
				established[key] = r.openTo("s1", key)
			}
			r.apply(edited(all, way.leave))
			r.each(func(r *rig, key balancer.Key) {
				if got := r.tally(r.w.client, key, 12); got["s1"] > 0 || len(got) != 2 {
					r.Errorf("%s: answers %v, want none from s1", way.name, got)
				}
				if c := established[key]; c != nil {
					if err := alive(c, atOnce); err != nil {
						r.Errorf("%s: the connection that s1 has: %v, want it to live on", way.name, err)
					}
				}
			})
		})
	}
	r.step("back", func(r *rig) {
		r.apply(all)
		r.each(func(r *rig, key balancer.Key) {
			if got := r.tally(r.w.client, key, 12); len(got) != 3 {
				r.Errorf("answers %v, want s1 among them", got)
			}
		})
	})
}

// openTo opens connections until one is answered by that server.
func (r *rig) openTo(name string, key balancer.Key) net.Conn {
	r.Helper()
	for range 20 * len(r.w.servers) {
		c, a := r.mustOpen(r.w.client, netip.Addr{}, key)
		if a.Server == name {
			return c
		}
		_ = c.Close()
	}
	r.Fatalf("%s never answers %s", name, key)
	return nil
}

// testServiceRemoved has a service that goes leave clients without it, and its neighbour on the VIP untouched.
func testServiceRemoved(r *rig) {
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	neighbour := newService("neighbour", r.w.vip, endpoints(r.w.servers[2])...)
	for i := range neighbour.Ports {
		neighbour.Ports[i].Port = 82
	}
	at82 := func(key balancer.Key) balancer.Key { return keyOf(key.Addr, 82, key.Proto) }
	r.step("both", func(r *rig) {
		r.apply(web, neighbour)
		r.each(func(r *rig, key balancer.Key) { r.mustAsk(r.w.client, key); r.mustAsk(r.w.client, at82(key)) })
	})
	r.step("one", func(r *rig) {
		r.apply(neighbour)
		r.each(func(r *rig, key balancer.Key) { r.refused(r.w.client, key); r.mustAsk(r.w.client, at82(key)) })
	})
	r.step("none", func(r *rig) {
		r.apply()
		r.each(func(r *rig, key balancer.Key) {
			for _, from := range []*lab.NS{r.w.client, r.w.host} {
				if a, err := r.askFrom(from, netip.Addr{}, at82(key), silence); err == nil {
					r.Errorf("%s asks a VIP without services: %s answers", from.Name, a.Server)
				}
			}
		})
	})
	r.step("back", func(r *rig) {
		r.apply(web)
		r.each(func(r *rig, key balancer.Key) { r.mustAsk(r.w.client, key) })
	})
}
