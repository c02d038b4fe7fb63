package dataplanetest

import (
	"fmt"
	"net"
	"net/netip"

	"vipd/balancer"
	"vipd/test/lab"
)

// testMaxConnections opens as many connections as max_connections permits. Additional clients must
// be refused until one of these connections closes.
func testMaxConnections(r *rig) {
	if !r.caps.MaxConnections {
		r.Skipf("%s can't limit connections", r.caps.Mode)
	}
	const s1, s2 = 2, 3
	web := newService("web", r.w.vip)
	web.Scheduler, web.Endpoints = balancer.RoundRobin, endpoints(r.w.servers[:2]...)
	for i := range web.Endpoints {
		web.Endpoints[i].MaxConnections = s1 + i/2
	}
	r.apply(web)
	r.resets = true
	r.eachOf(balancer.TCP, func(r *rig, key balancer.Key) {
		conns := map[string][]net.Conn{}
		for range s1 + s2 {
			c, a := r.mustOpen(r.w.client, netip.Addr{}, key)
			conns[a.Server] = append(conns[a.Server], c)
		}
		if len(conns["s1"]) != s1 || len(conns["s2"]) != s2 {
			r.Fatalf("connections of s1 and s2 = %d and %d, want %d and %d", len(conns["s1"]), len(conns["s2"]), s1, s2)
		}
		r.refused(r.w.client, key)
		r.hangUp(conns["s2"][0])
		var a string
		awaitForgotten(r, func() error {
			r.pause(r.s.Remembers / 50)
			got, err := r.ask(r.w.client, key)
			a = got.Server
			return err
		}, "room for a connection")
		if a != "s2" {
			r.Errorf("server of a new client after a connection to s2 has ended = %s, want s2", a)
		}
		for _, c := range append(conns["s1"], conns["s2"][1:]...) {
			if err := alive(c, atOnce); err != nil {
				r.Errorf("error of a connection within the limits = %v, want nil", err)
			}
			r.hangUp(c)
		}
	})
	r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[:2]...) }))
	r.eachOf(balancer.TCP, func(r *rig, key balancer.Key) {
		for range 2 * (s1 + s2) {
			r.mustOpen(r.w.client, netip.Addr{}, key)
		}
	})
}

// awaitForgotten waits until check returns nil. It waits longer than the dataplane remembers closed
// connections.
func awaitForgotten(r *rig, check func() error, what string) {
	r.Helper()
	lab.Eventually(r, r.s.Remembers+atOnce, fmt.Sprintf("%s, although ended connections are remembered for %v", what, r.s.Remembers), check)
}
