package dataplanetest

import (
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/test/lab"
)

// otherPort is the second port of a service, and otherTarget its target port.
const (
	otherPort   = 81
	otherTarget = 9090
)

// scopedService is like stickyService, but sets the service's name, VIPs and affinity scope, and
// adds a second TCP port.
func scopedService(r *rig, name balancer.Name, vip addrs, scope balancer.AffinityScope, servers ...*server) *balancer.Service {
	return edited(stickyService(r, 3600e9, servers...), func(s *balancer.Service) {
		s.Name, s.VIPs, s.AffinityScope = name, vip[:], scope
		s.Ports = append(s.Ports, balancer.Port{Name: "other", Port: otherPort, Protocol: balancer.TCP, TargetPort: otherTarget})
	})
}

// movedPorts returns a copy of s in which each port is n higher.
func movedPorts(s *balancer.Service, n uint16) *balancer.Service {
	return edited(s, func(s *balancer.Service) {
		for i := range s.Ports {
			s.Ports[i].Port += balancer.PortRange(n)
		}
	})
}

// testAffinityScope connects clients to several TCP and UDP ports. If the affinity scope includes
// several ports, a client must reach the same server on all of them, even after a server has left.
func testAffinityScope(r *rig) {
	for _, s := range r.w.servers {
		for _, a := range s.addr {
			s.ns.Echo("tcp", s.name, netip.AddrPortFrom(a, otherTarget))
		}
	}
	scopes := append([]balancer.AffinityScope{balancer.PortScope}, r.caps.AffinityScopes...)
	for i, scope := range scopes {
		r.step(string(scope), func(r *rig) {
			vip := vipN(60 + i)
			web := scopedService(r, "web", vip, scope, r.w.servers...)
			files := movedPorts(scopedService(r, "files", vip, scope, r.w.servers...), 100)
			for family, name := range []string{"4", "6"} {
				r.step(name, func(r *rig) {
					first := keyOf(vip[family], vipPort, balancer.TCP)
					same := []balancer.Key{keyOf(vip[family], otherPort, balancer.TCP), keyOf(vip[family], vipPort, balancer.UDP)}
					apart := []balancer.Key{keyOf(vip[family], vipPort+100, balancer.TCP), keyOf(vip[family], vipPort+100, balancer.UDP)}
					switch scope {
					case balancer.PortScope:
						same, apart = nil, append(same, apart...)
					case balancer.VIPScope:
						same, apart = append(same, apart...), nil
					}
					checkScope(r, []*balancer.Service{web, files}, first, same, apart)
				})
			}
			if scope == balancer.VIPScope {
				r.step("foreign", func(r *rig) { checkForeignEndpoints(r, web, files) })
			}
		})
	}
}

// checkScope connects clients to the key first, and then to other keys. Through the keys in same,
// clients must reach the same servers as through first. Through the keys in apart, they must be
// scheduled independently. Then a server leaves and returns.
func checkScope(r *rig, services []*balancer.Service, first balancer.Key, same, apart []balancer.Key) {
	r.Helper()
	r.apply(services...)
	before := askFromAll(r, first)
	if len(distinct(before)) != len(r.w.servers) {
		r.Fatalf("servers of new clients = %v, want round robin over all servers", before)
	}
	for _, k := range apart {
		if got := askShifted(r, k); slices.Equal(got, before) {
			r.Errorf("%s: servers of the clients = %v, the same as at %s; want an independent choice", k, got, first)
		}
	}
	for _, k := range same {
		checkSameServers(r, k, before, "at "+first.String())
	}
	left := serverOf(r, lab.Answer{Server: before[0]})
	for _, y := range ways() {
		if y.name != "draining" && y.name != "removed" {
			continue
		}
		without := make([]*balancer.Service, len(services))
		for i, s := range services {
			without[i] = y.without(s, left)
		}
		r.apply(without...)
		keys := append(slices.Clone(same), first)
		moved := askFromAll(r, keys[0])
		for i := range moved {
			if moved[i] == left.name || before[i] != left.name && moved[i] != before[i] {
				r.Errorf("when %s leaves (%s), server of client %d = %s, was %s; want a change only for clients of the server that leaves", left.name, y.name, i, moved[i], before[i])
			}
		}
		r.apply(services...)
		for _, k := range keys {
			checkSameServers(r, k, moved, "at "+keys[0].String()+" after "+left.name+" left ("+string(y.name)+")")
		}
		before, left = moved, serverOf(r, lab.Answer{Server: moved[0]})
	}
	r.apply()
}

// askShifted is like askFromAll, but the first client sends its request last. The results have
// askFromAll's order.
func askShifted(r *rig, key balancer.Key) []string {
	r.Helper()
	all := *r.w
	all.clients = append(slices.Clone(all.clients[1:]), all.clients[0])
	shifted := *r
	shifted.w = &all
	got := askFromAll(&shifted, key)
	return append([]string{got[len(got)-1]}, got[:len(got)-1]...)
}

// checkForeignEndpoints gives two services on one VIP different endpoints. If a client's server is
// an endpoint of both services, the client must reach it through both. Otherwise, the client must
// stay on its server in the service web, and use another server in the service files.
func checkForeignEndpoints(r *rig, web, files *balancer.Service) {
	only := edited(files, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[2]) })
	r.apply(web, only)
	for _, vip := range web.VIPs {
		at, atOnly := keyOf(vip, vipPort, balancer.TCP), keyOf(vip, vipPort+100, balancer.TCP)
		before := askFromAll(r, at)
		for range 2 {
			if got := distinct(askFromAll(r, atOnly)); !slices.Equal(got, []string{r.w.servers[2].name}) {
				r.Errorf("%s: servers of the clients = %v, want only the service's only server", atOnly, got)
			}
			checkSameServers(r, at, before, "before they used "+atOnly.String())
		}
	}
	two := edited(files, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[1:]...) })
	r.apply(web, two)
	for _, vip := range web.VIPs {
		at, atTwo := keyOf(vip, vipPort, balancer.TCP), keyOf(vip, vipPort+100, balancer.TCP)
		before, own := askFromAll(r, at), askFromAll(r, atTwo)
		for i := range own {
			if own[i] != before[i] && before[i] != r.w.servers[0].name {
				r.Errorf("server of client %d = %s at %s, but %s at %s; want the same server", i, before[i], at, own[i], atTwo)
			}
		}
		checkSameServers(r, atTwo, own, "at "+atTwo.String())
		checkSameServers(r, at, before, "before they used "+atTwo.String())
	}
}

// testAffinityPrefix groups clients by network: first all clients in one large network, and then
// pairs of clients in small networks. All clients in a network must have the same server, but the
// small networks must not all have the same one.
func testAffinityPrefix(r *rig) {
	if !r.caps.AffinityPrefix {
		r.Skip("the mode can't group clients")
	}
	near := []addrs{r.w.clients[0], r.w.clients[1]} // both are in the same /24 and the same /64
	web := edited(stickyService(r, 3600e9, r.w.servers...), func(s *balancer.Service) { s.AffinityPrefix = []int{24, 64} })
	narrow := edited(web, func(s *balancer.Service) { s.AffinityPrefix = []int{31, 127} }) // .2 and .3 are in one network, .4 and .5 in the next
	r.each(func(r *rig, key balancer.Key) {
		ask := func(c addrs) string {
			r.Helper()
			a, err := r.askFrom(r.w.client, c.inFamilyOf(key.Addr), key, atOnce)
			if err != nil {
				r.Fatalf("error of client %s at %s = %v, want nil", c.inFamilyOf(key.Addr), key, err)
			}
			return a.Server
		}
		r.apply(web)
		if one, other := ask(near[0]), ask(near[1]); one != other {
			r.Errorf("servers of two clients in one network = %s and %s, want the same server", one, other)
		}
		if all := distinct(askFromAll(r, key)); len(all) != 1 {
			r.Errorf("servers of the clients in one network = %v, want a single server", all)
		}
		left := serverOf(r, lab.Answer{Server: ask(near[0])})
		y := ways()[1]
		r.apply(y.without(web, left))
		if all := distinct(askFromAll(r, key)); len(all) != 1 || all[0] == left.name {
			r.Errorf("servers of the clients in one network = %v after %s left, want another single server", all, left.name)
		}
		r.apply(narrow)
		all := askFromAll(r, key)
		if all[0] != all[1] || all[2] != all[3] || len(distinct(all)) == 1 {
			r.Errorf("servers of clients .2 to .8 = %v, want the same server for .2 and .3 and for .4 and .5, and at least two servers", all)
		}
		checkSameServers(r, key, all, "and nothing has changed")
		r.apply()
	})
}
