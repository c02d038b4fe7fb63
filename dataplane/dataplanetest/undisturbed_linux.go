package dataplanetest

import (
	"fmt"
	"net"
	"net/netip"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// testUndisturbed has connections and flows live through changes that are not about their endpoints.
func testUndisturbed(r *rig) {
	web := newService("web", r.w.vip, endpoints(r.w.servers[:2]...)...)
	other := newService("other", vipN(30), endpoints(r.w.servers...)...)
	neighbour := newService("neighbour", r.w.vip, endpoints(r.w.servers[2])...) // on the same VIP
	for i := range neighbour.Ports {
		neighbour.Ports[i].Port = 82
	}
	r.apply(web, other)
	type flow struct {
		key    balancer.Key
		conn   net.Conn
		server string
	}
	var flows []flow
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		for _, vip := range r.w.vip {
			k := keyOf(vip, vipPort, proto)
			c, a := r.mustOpen(r.w.client, netip.Addr{}, k)
			flows = append(flows, flow{k, c, a.Server})
		}
	}
	check := func(change string) {
		r.Helper()
		for _, f := range flows {
			if err := alive(f.conn, atOnce); err != nil {
				r.Fatalf("%s: after %s: %v, want it undisturbed", f.key, change, err)
			}
			if f.key.Proto == balancer.TCP {
				continue
			}
			if a, err := lab.AskWithin(f.conn, patience(atOnce)); err != nil || a.Server != f.server {
				r.Errorf("%s: after %s the flow is answered by %q, %v, want %s", f.key, change, a.Server, err, f.server)
			}
		}
	}
	for i := range 5 {
		fewer := edited(other, func(s *balancer.Service) { s.Endpoints = s.Endpoints[2*(i%2):] })
		r.apply(web, fewer, neighbour)
		check("changing another service and adding one on the same VIP")
		r.apply(web)
		check("removing other services")
		r.apply(web, other)
		check("adding another service")
	}
	r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers...) }))
	check("adding an endpoint")
	r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = weighted(r.w.servers[:2], []int{5, 7}) }))
	check("changing weights")
}

// testUndisturbedMany has connections and flows live through hundreds of changes to other services, to other ports of their VIP, and to the other endpoints of their own service, while data goes through them all the time.
func testUndisturbedMany(r *rig) {
	const atATime = 10
	changes := max(4*atATime, wait.Soak(100, 1000))
	web := newService("web", r.w.vip, endpoints(r.w.servers[0])...)
	neighbour := newService("neighbour", r.w.vip, endpoints(r.w.servers...)...)
	for i := range neighbour.Ports {
		neighbour.Ports[i].Port = 82
	}
	r.apply(web, neighbour)
	pulses := r.pulses(r.w.vip)
	h := newHistory(5, r.w.servers, 100, 8, web)
	for i := 1; i <= changes; i++ {
		h.next()
		services := h.wanted()
		if i%7 < 4 {
			services = append(services, neighbour)
		}
		if revision := r.set(services...); i%atATime == 0 {
			if err := r.wait(revision); err != nil {
				r.Fatalf("after %d changes: %v", i, err)
			}
		}
	}
	r.undisturbed(pulses, fmt.Sprintf("%d changes", changes))
	r.servesWanted(1)
}
