package dataplanetest

import (
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/test/lab"
)

// rangeService returns a service with these ports, TCP and UDP, on r's VIP.
func rangeService(r *rig, name balancer.Name, ports balancer.PortRange, servers ...*server) *balancer.Service {
	return edited(newService(name, r.w.vip, endpoints(servers...)...), func(s *balancer.Service) {
		for i := range s.Ports {
			s.Ports[i].Port, s.Ports[i].TargetPort = ports, ports
		}
	})
}

// These are ports of testRanges: the ends of a range, a single port inside it, and two ports
// outside it.
const (
	rangeFirst, rangeSingle, rangeLast = 7000, 7005, 7009
	rangeAfter, rangeFar               = 7010, 60000
)

// testRanges serves a range of ports, a single port inside it, and the whole address around it. The
// narrowest must answer, also after the others are removed and added again.
func testRanges(r *rig) {
	if r.caps.MaxPorts == 0 {
		r.Skipf("%s mode does not serve ranges of ports", r.caps.Mode)
	}
	for _, s := range r.w.servers {
		for _, a := range s.addr {
			for _, port := range []uint16{rangeFirst, rangeSingle, rangeLast, rangeAfter, rangeFar} {
				for _, network := range []string{"tcp", "udp"} {
					s.ns.Echo(network, s.name, netip.AddrPortFrom(a, port))
				}
			}
		}
	}
	s1, s2, s3 := r.w.servers[0], r.w.servers[1], r.w.servers[2]
	ranged := rangeService(r, "range", balancer.NewPortRange(rangeFirst, rangeLast), s1)
	single := rangeService(r, "single", rangeSingle, s2)
	whole := rangeService(r, "whole", balancer.AllPorts, s3)
	closed := edited(ranged, func(s *balancer.Service) { s.SourceRanges = prefixes("192.0.2.0/24", "2001:db8::/32") })
	for _, c := range []struct {
		name     string
		services []*balancer.Service
		want     map[uint16]string // the server of each port; "" refuses
	}{
		{"range", []*balancer.Service{ranged}, map[uint16]string{rangeFirst: "s1", rangeSingle: "s1", rangeLast: "s1", rangeAfter: ""}},
		{"single port inside", []*balancer.Service{ranged, single}, map[uint16]string{rangeFirst: "s1", rangeSingle: "s2", rangeLast: "s1", rangeAfter: ""}},
		{"inside all", []*balancer.Service{ranged, single, whole}, map[uint16]string{rangeFirst: "s1", rangeSingle: "s2", rangeAfter: "s3", rangeFar: "s3"}},
		{"without the range", []*balancer.Service{single, whole}, map[uint16]string{rangeFirst: "s3", rangeSingle: "s2", rangeLast: "s3"}},
		{"without the single port", []*balancer.Service{whole}, map[uint16]string{rangeFirst: "s3", rangeSingle: "s3"}},
		{"without endpoints", []*balancer.Service{edited(ranged, func(s *balancer.Service) { s.Endpoints = nil }), single}, map[uint16]string{rangeFirst: "", rangeSingle: "s2"}},
		{"range again", []*balancer.Service{ranged}, map[uint16]string{rangeFirst: "s1", rangeSingle: "s1", rangeLast: "s1", rangeAfter: ""}},
	} {
		if slices.Contains(c.services, whole) && r.caps.MaxPorts < balancer.AllPorts.Len() {
			continue
		}
		r.step(c.name, func(r *rig) {
			r.apply(c.services...)
			r.each(func(r *rig, key balancer.Key) { checkPortServers(r, key, c.want) })
		})
	}
	r.step("source ranges", func(r *rig) {
		r.apply(closed, single)
		r.each(func(r *rig, key balancer.Key) {
			r.ignored(r.w.client, netip.Addr{}, keyOf(key.Addr, rangeFirst, key.Proto))
			checkPortServers(r, key, map[uint16]string{rangeSingle: "s2"})
		})
	})
}

// checkPortServers asks at ports of key's address, from a forwarded client and from the host. Each
// must be answered by its server, or refused.
func checkPortServers(r *rig, key balancer.Key, want map[uint16]string) {
	for port, server := range want {
		at := keyOf(key.Addr, port, key.Proto)
		for _, from := range []*lab.NS{r.w.client, r.w.host} {
			if server == "" {
				r.refused(from, at)
			} else if a := r.mustAsk(from, at); a.Server != server {
				r.Errorf("%s from %s is answered by %s, want %s", at, from.Name, a.Server, server)
			}
		}
	}
}
