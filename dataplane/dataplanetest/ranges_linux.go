package dataplanetest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
)

// rangeService returns a service with a port range on the rig's VIP, for TCP and UDP.
func rangeService(r *rig, name balancer.Name, ports balancer.PortRange, servers ...*server) *balancer.Service {
	return edited(newService(name, r.w.vip, endpoints(servers...)...), func(s *balancer.Service) {
		for i := range s.Ports {
			s.Ports[i].Port, s.Ports[i].TargetPort = ports, ports
		}
	})
}

// These are ports of testRanges: both ends of a range, a single port inside it, and two ports
// outside it.
const (
	rangeFirst, rangeSingle, rangeLast = 7000, 7005, 7009
	rangeAfter, rangeFar               = 7010, 60000

	// manySinglePorts is more than the number of ports that a node of iptables mode's dispatch tree
	// can hold.
	manySinglePorts = 60
)

// testRanges serves a port range, a single port inside it, and all ports of the same address. The
// narrowest service must answer, even after the other services are removed and added again.
func testRanges(r *rig) {
	if r.caps.MaxPorts == 0 {
		r.Skipf("%s mode does not serve ranges of ports", r.caps.Mode)
	}
	for _, s := range r.w.servers {
		listenAt(s, rangeFirst, rangeSingle, rangeLast, rangeAfter, rangeFar)
	}
	s1, s2, s3 := r.w.servers[0], r.w.servers[1], r.w.servers[2]
	ranged := rangeService(r, "range", balancer.NewPortRange(rangeFirst, rangeLast), s1)
	single := rangeService(r, "single", rangeSingle, s2)
	whole := rangeService(r, "whole", balancer.AllPorts, s3)
	closed := edited(ranged, func(s *balancer.Service) { s.SourceRanges = prefixes("192.0.2.0/24", "2001:db8::/32") })
	for _, c := range []struct {
		name     string
		services []*balancer.Service
		want     map[uint16]string // the server of each port; "" means refused
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
	r.step("many single ports", func(r *rig) {
		services := []*balancer.Service{rangeService(r, "range", balancer.NewPortRange(rangeFirst, rangeLast), s1)}
		for port := uint16(rangeSingle + 1); port < rangeSingle+manySinglePorts; port++ {
			services = append(services, rangeService(r, balancer.Name(fmt.Sprint("single-", port)), balancer.PortRange(port), s2))
		}
		services = append(services, edited(single, func(s *balancer.Service) { s.Endpoints = nil }))
		r.apply(services...)
		r.each(func(r *rig, key balancer.Key) {
			checkPortServers(r, key, map[uint16]string{rangeFirst: "s1", rangeSingle: "", rangeLast: "s2"})
		})
	})
	r.step("connections", func(r *rig) {
		checkRangeConnections(r, rangeService(r, "web", balancer.NewPortRange(rangeFirst, rangeAfter), s1))
	})
	r.step("reused ports", checkRangePortReuse)
	if r.caps.RangeAffinity {
		r.step("affinity", checkRangeAffinity)
	}
}

// checkRangeConnections opens connections to a range. They must be counted, and listed with their
// real ports. If the mode can kill, a kill must end only the connection to its port. Removing the
// endpoint must end the other connections. No other case uses the range of web, because the kernel
// remembers its counters.
func checkRangeConnections(r *rig, web *balancer.Service) {
	s2 := r.w.servers[1]
	web = edited(web, func(s *balancer.Service) { s.DrainTimeout = time.Millisecond })
	r.apply() // deletes the counts of the previous service with the same key
	r.apply(web)
	r.each(func(r *rig, key balancer.Key) {
		before := counted(r.dp, key.Proto)
		at := keyOf(key.Addr, rangeLast, key.Proto)
		c, a := r.mustOpen(r.w.client, netip.Addr{}, at)
		checkListed(r, at, c.LocalAddr().String(), a)
		r.tally(r.w.client, keyOf(key.Addr, rangeFirst, key.Proto), 4)
		r.Eventually("counting 5 connections", func() error { return counts5(r.dp, key.Proto, before) })
	})
	r.eachOf(balancer.TCP, func(r *rig, key balancer.Key) {
		at := keyOf(key.Addr, rangeLast, key.Proto)
		r.mustOpen(r.w.client, netip.Addr{}, at)
		other, _ := r.mustOpen(r.w.client, netip.Addr{}, keyOf(key.Addr, rangeSingle, key.Proto))
		r.Eventually("the end of the earlier connections", func() error {
			all, err := dataplane.Connections(r.Context(), optional[dataplane.ListsConnections](r), dataplane.ConnectionQuery{Frontend: at})
			if all = slices.DeleteFunc(all, func(c dataplane.Connection) bool { return c.Closed() }); err != nil || len(all) != 1 {
				return fmt.Errorf("open connections to %s = %v, %v, want one", at, all, err)
			}
			return nil
		})
		if n, err := optional[dataplane.EndsConnections](r).Kill(r.Context(), dataplane.ConnectionQuery{Frontend: at}); !r.s.VirtualServers && (n != 1 || err != nil) {
			r.Errorf("Kill(%s) = %d, %v, want 1 connection", at, n, err)
		}
		if err := alive(other, atOnce); err != nil {
			r.Errorf("error of a connection to another port of the range = %v, want none", err)
		}
		r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(s2) }))
		r.Eventually("ending the connections of a removed endpoint", func() error {
			all, err := dataplane.Connections(r.Context(), optional[dataplane.ListsConnections](r), dataplane.ConnectionQuery{Service: "web", Client: netip.MustParseAddrPort(other.LocalAddr().String())})
			if err != nil || len(all) > 0 && !all[0].Closed() {
				return fmt.Errorf("connections = %v, %w", all, err)
			}
			return nil
		})
		r.apply(web)
	})
}

// checkRangePortReuse makes the only server of a range leave, as in testPortReuse. If the server is
// removed, a client that connects again from its port must reach the other server. If the server
// drains, a SYN must not end its connections.
func checkRangePortReuse(r *rig) {
	var dead, alive []exit
	for _, y := range exits() {
		if y.name != "removed" && y.name != "draining" {
			continue
		}
		x := exit{way: y, before: rangeService(r, y.name, balancer.NewPortRange(rangeFirst, rangeLast), r.w.servers[0])}
		x.before.VIPs, x.before.DrainTimeout = y.vip[:], time.Hour
		x.after = y.without(edited(x.before, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[:2]...) }), r.w.servers[0])
		for _, vip := range x.before.VIPs {
			x.key = keyOf(vip, rangeLast, balancer.TCP)
			if y.dead() {
				dead = append(dead, x)
			} else {
				alive = append(alive, x)
			}
		}
	}
	reuseRestarted(r, dead, true)
	reuseForged(r, alive)
}

// checkRangeAffinity connects clients as passive FTP does, to a single port and then to ports of a
// range. A client must reach the same server on all ports of the range. If the affinity scope is
// the VIP, it must also reach that server on the single port.
func checkRangeAffinity(r *rig) {
	ftp := edited(stickyService(r, time.Hour, r.w.servers...), func(s *balancer.Service) {
		s.Ports = []balancer.Port{
			{Name: "control", Port: vipPort, Protocol: balancer.TCP, TargetPort: targetPort},
			{Name: "data", Port: balancer.NewPortRange(rangeFirst, rangeLast), Protocol: balancer.TCP, TargetPort: balancer.NewPortRange(rangeFirst, rangeLast)},
		}
	})
	wide := slices.Contains(r.caps.AffinityScopes, balancer.VIPScope)
	if wide {
		ftp.AffinityScope = balancer.VIPScope
	}
	r.apply(ftp)
	r.eachOf(balancer.TCP, func(r *rig, key balancer.Key) {
		first := keyOf(key.Addr, rangeFirst, balancer.TCP)
		if wide {
			first.Port = vipPort
		}
		before := askFromAll(r, first)
		if len(distinct(before)) < 2 {
			r.Fatalf("new clients are answered by %v, want several servers", before)
		}
		for _, port := range []uint16{rangeFirst, rangeLast} {
			checkSameServers(r, keyOf(key.Addr, port, balancer.TCP), before, "at "+first.String())
		}
	})
}

// checkPortServers sends requests to ports of a VIP, from a client behind the host and from the
// host. Each request must be answered by the port's server, or refused.
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
