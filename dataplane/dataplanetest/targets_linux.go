package dataplanetest

import (
	"net/netip"

	"vipd/balancer"
	"vipd/test/lab"
)

// testTargets gives endpoints their own target ports. Clients must reach each endpoint on its own
// target port.
func testTargets(r *rig) {
	s1, s2, s3 := r.w.servers[0], r.w.servers[1], r.w.servers[2]
	web := newService("web", r.w.vip, endpoints(s1)...)
	web.Scheduler = balancer.RoundRobin
	for i := range web.Ports {
		web.Ports[i].NodePort = nodePort
	}
	for _, a := range s2.addr {
		s2.ns.Echo("tcp", "s2-9090", netip.AddrPortFrom(a, 9090))
		s2.ns.Echo("udp", "s2-9090", netip.AddrPortFrom(a, 9090))
		web.Endpoints = append(web.Endpoints, balancer.Endpoint{Address: a, Weight: 1, Port: 9090})
	}
	for _, a := range s3.addr {
		s3.ns.Echo("tcp", "s3-9091", netip.AddrPortFrom(a, 9091))
		s3.ns.Echo("udp", "s3-9092", netip.AddrPortFrom(a, 9092))
		web.Endpoints = append(web.Endpoints, balancer.Endpoint{
			Address: a, Weight: 1, Port: 9090, Ports: map[string]uint16{"tcp": 9091, "udp": 9092},
		})
	}
	r.apply(web)
	third := map[balancer.Protocol]string{balancer.TCP: "s3-9091", balancer.UDP: "s3-9092"}
	r.each(func(r *rig, key balancer.Key) {
		forVIPAndNodePort(r, key, func(from *lab.NS, key balancer.Key) { checkMeets(r, from, key, "s1", "s2-9090", third[key.Proto]) })
	})
}

// testHostEndpoint uses an echo server on the host itself as an endpoint. All kinds of clients must
// reach it.
func testHostEndpoint(r *rig) {
	web := newService("web", r.w.vip, endpoints(r.w.servers[0])...)
	web.Scheduler = balancer.RoundRobin
	for i := range web.Ports {
		web.Ports[i].NodePort = nodePort
	}
	for _, a := range r.w.node {
		r.w.host.Echo("tcp", "host", netip.AddrPortFrom(a, targetPort))
		r.w.host.Echo("udp", "host", netip.AddrPortFrom(a, targetPort))
		web.Endpoints = append(web.Endpoints, balancer.Endpoint{Address: a, Weight: 1})
	}
	r.apply(web)
	r.each(func(r *rig, key balancer.Key) {
		forVIPAndNodePort(r, key, func(from *lab.NS, key balancer.Key) { checkMeets(r, from, key, "host", "s1") })
		checkMeets(r, r.w.servers[1].ns, key, "host", "s1")
	})
}

// checkMeets sends requests for two round robin cycles. Each of the named servers must answer two
// requests.
func checkMeets(r *rig, from *lab.NS, key balancer.Key, names ...string) {
	r.Helper()
	got := r.tally(from, key, 2*len(names))
	for _, name := range names {
		if got[name] != 2 {
			r.Errorf("%s asks %s: answers by server = %v, want 2 from each of %q", from.Name, key, got, names)
			return
		}
	}
}
