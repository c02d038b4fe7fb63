package dataplanetest

import (
	"context"
	"net/netip"

	"vipd/balancer"
	"vipd/test/lab"
)

// These are the first ports of endpoints that serve a range on other ports: on higher ports, on
// lower ports, and on ports that overlap with the range. movedOther is the first port of another
// range that leads to the same endpoints.
const (
	movedUp, movedDown = 7100, 6900
	movedOverlap       = rangeFirst - (rangeLast-rangeFirst)/2
	movedOther         = 7200
)

// movedService is like rangeService, but the endpoints' ports start at first.
func movedService(r *rig, name balancer.Name, ports balancer.PortRange, first uint16, servers ...*server) *balancer.Service {
	return edited(rangeService(r, name, ports, servers...), func(s *balancer.Service) {
		for i := range s.Ports {
			s.Ports[i].TargetPort = balancer.NewPortRange(first, first+uint16(ports.Len()-1))
		}
	})
}

// testMovedRanges serves ranges whose endpoints listen on higher or lower ports. Each port must
// lead to the endpoints' port in the same position, and other frontends must not change.
func testMovedRanges(r *rig) {
	if r.caps.MaxMovedPorts == 0 {
		r.Skipf("%s mode does not map ranges of ports to other ports", r.caps.Mode)
	}
	const last = rangeLast - rangeFirst
	s1, s2 := r.w.servers[0], r.w.servers[1]
	listenAt(s2, rangeSingle, rangeAfter)
	single, plain := rangeService(r, "single", rangeSingle, s2), rangeService(r, "plain", balancer.NewPortRange(rangeAfter, rangeAfter+9), s2)
	for first, scheduler := range map[uint16]balancer.Scheduler{movedUp: balancer.WeightedRoundRobin, movedDown: balancer.SourceHash, movedOverlap: balancer.RoundRobin} {
		listenAt(s1, first, first+last)
		r.step(balancer.PortRange(first).String(), func(r *rig) {
			moved := movedService(r, "moved", balancer.NewPortRange(rangeFirst, rangeLast), first, s1)
			moved.Scheduler = scheduler
			r.apply(moved, single, plain)
			r.each(func(r *rig, key balancer.Key) {
				for _, offset := range []uint16{0, last} {
					at := keyOf(key.Addr, rangeFirst+offset, key.Proto)
					for _, from := range []*lab.NS{r.w.client, r.w.host} {
						if a := r.mustAsk(from, at); a.Server != s1.name || a.Local.Port() != first+offset {
							r.Errorf("%s from %s is answered by %s at %s, want %s at port %d", at, from.Name, a.Server, a.Local, s1.name, first+offset)
						}
					}
				}
				checkPortServers(r, key, map[uint16]string{rangeSingle: "s2", rangeAfter: "s2", rangeFirst - 1: ""})
			})
		})
	}
	listenAt(s1, movedUp+rangeSingle-rangeFirst, movedUp+1)
	r.step("reused client port", checkMovedClients)
	r.step("connections", func(r *rig) {
		checkRangeConnections(r, movedService(r, "web", balancer.NewPortRange(rangeFirst, rangeAfter+1), movedUp, s1))
	})
}

// listenAt starts echo servers on ports of a server's addresses.
func listenAt(s *server, ports ...uint16) {
	for _, a := range s.addr {
		for _, port := range ports {
			s.ns.Echo("tcp", s.name, netip.AddrPortFrom(a, port))
			s.ns.Echo("udp", s.name, netip.AddrPortFrom(a, port))
		}
	}
}

// checkMovedClients sends datagrams from one client port to two ranges that lead to the same
// endpoint. Both must reach the endpoint's port in their position, although the second flow would
// have the same addresses as the first.
func checkMovedClients(r *rig) {
	s1 := r.w.servers[0]
	r.apply(
		movedService(r, "moved", balancer.NewPortRange(rangeFirst, rangeLast), movedUp, s1),
		movedService(r, "other", balancer.NewPortRange(movedOther, movedOther+rangeLast-rangeFirst), movedUp, s1),
	)
	r.eachOf(balancer.UDP, func(r *rig, key balancer.Key) {
		from := netip.AddrPortFrom(r.addressOf(r.w.client, key.Addr), r.s.ports.next())
		for _, port := range []uint16{rangeFirst, movedOther} {
			ctx, cancel := context.WithTimeout(r.Context(), patience(atOnce))
			c, err := r.w.client.DialFrom(ctx, "udp", from, netip.AddrPortFrom(key.Addr, port).String())
			cancel()
			if err != nil {
				r.Fatal(err)
			}
			a, err := lab.AskWithin(c, patience(atOnce))
			_ = c.Close()
			if err != nil || a.Local.Port() != movedUp {
				r.Errorf("port %d from %s is answered at %s, %v, want port %d", port, from, a.Local, err, movedUp)
			}
		}
	})
}
