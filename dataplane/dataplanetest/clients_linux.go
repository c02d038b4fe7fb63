package dataplanetest

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// stickyService returns a service with affinity. Its scheduler is round robin, so without affinity,
// each of a client's connections would reach another server.
func stickyService(r *rig, timeout time.Duration, servers ...*server) *balancer.Service {
	web := newService("web", r.w.vip, endpoints(servers...)...)
	web.Scheduler, web.Affinity, web.AffinityTimeout = balancer.RoundRobin, balancer.ClientIPAffinity, timeout
	return web
}

// testAffinity makes a server leave a service in each way, and adds it again. The server's clients
// must move to other servers, and remain there when the server returns. All other clients must stay
// on their servers.
func testAffinity(r *rig) {
	web := stickyService(r, time.Hour, r.w.servers...)
	r.each(func(r *rig, key balancer.Key) {
		r.apply(web)
		first := askFromAll(r, key)
		if len(distinct(first)) != len(r.w.servers) {
			r.Errorf("servers of new clients = %v, want round robin over all servers", first)
		}
		for range 3 {
			checkSameServers(r, key, first, "and nothing has changed")
		}
		for _, y := range ways() {
			first = checkLeaveAndReturn(r, key, web, y, first)
		}
	})
}

// checkLeaveAndReturn makes the first client's server leave the service in the way y, and then adds
// the server again. It returns the servers that all clients reach afterwards.
func checkLeaveAndReturn(r *rig, key balancer.Key, web *balancer.Service, y way, before []string) []string {
	r.Helper()
	left := serverOf(r, lab.Answer{Server: before[0]})
	if y.down {
		r.judge(balancer.HealthDown, balancer.Target{Service: web.Name, Addr: left.addr.inFamilyOf(key.Addr), Port: targetPort})
	}
	r.apply(y.without(web, left))
	moved := askFromAll(r, key)
	for i := range moved {
		if moved[i] == left.name || before[i] != left.name && moved[i] != before[i] {
			r.Errorf("when %s leaves (%s), server of client %d = %s, was %s; want a change only for clients of the server that leaves", left.name, y.name, i, moved[i], before[i])
		}
	}
	checkSameServers(r, key, moved, "and nothing has changed since "+left.name+" left ("+string(y.name)+")")
	r.judge(balancer.HealthUp)
	r.apply(web)
	checkSameServers(r, key, moved, "and "+left.name+" has returned ("+string(y.name)+")")
	return moved
}

func checkSameServers(r *rig, key balancer.Key, before []string, since string) {
	r.Helper()
	if again := askFromAll(r, key); !slices.Equal(again, before) {
		r.Errorf("servers of the clients = %v before, %s = %v; want the same", before, since, again)
	}
}

// testAffinityEnds waits until affinity_timeout expires. Clients that return later must be
// scheduled again, and clients that keep connecting must stay on their servers.
func testAffinityEnds(r *rig) {
	timeout := max(wait.Scaled(time.Second), r.s.Remembers+2*time.Second)
	r.apply(stickyService(r, timeout, r.w.servers...))
	r.resets = true
	keys := keysOf(r.w.vip, balancer.TCP, balancer.UDP)
	before := make([][]string, len(keys))
	host, asked := make([]string, len(keys)), make([]time.Time, len(keys))
	for i, k := range keys {
		before[i] = askFromAll(r, k)
		asked[i] = time.Now()
		host[i] = r.mustAsk(r.w.host, k).Server
	}
	for end := time.Now().Add(timeout + wait.Scaled(400*time.Millisecond)); time.Now().Before(end); {
		r.pause(timeout / 4)
		for i, k := range keys {
			last := asked[i]
			asked[i] = time.Now()
			again := r.mustAsk(r.w.host, k).Server
			if again != host[i] && time.Since(last) < timeout { // otherwise the machine was paused
				r.Errorf("%s: server of a client that keeps connecting = %s, then %s; want the same", k, host[i], again)
			}
			host[i] = again
		}
	}
	for i, k := range keys {
		after := askFromAll(r, k)
		if slices.Equal(after, before[i]) { // the client on the host may have been late and scheduled again, so the choice may be the same once by chance
			r.pause(timeout + wait.Scaled(400*time.Millisecond))
			after = askFromAll(r, k)
		}
		if slices.Equal(after, before[i]) {
			r.Errorf("%s: after affinity_timeout, %d clients had the same servers %v twice; want a new choice", k, len(after), after)
		}
	}
}

func (r *rig) pause(d time.Duration) { <-time.After(d) }

// testSourceRanges restricts a service to some client networks. Only clients in these networks and
// the node itself may get answers.
func testSourceRanges(r *rig) {
	allow := func(n int) *balancer.Service {
		web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
		for i := range web.Ports {
			web.Ports[i].NodePort = nodePort
		}
		for _, c := range r.w.clients[:n] {
			for _, a := range c {
				web.SourceRanges = append(web.SourceRanges, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		return web
	}
	check := func(r *rig, n int) {
		r.each(func(r *rig, key balancer.Key) {
			atNode := keyOf(r.w.node.inFamilyOf(key.Addr), nodePort, key.Proto)
			for _, k := range []balancer.Key{key, atNode} {
				for i, c := range r.w.clients[:2] {
					if a := c.inFamilyOf(key.Addr); i >= n {
						checkShutOut(r, a, k)
					} else if _, err := r.askFrom(r.w.client, a, k, atOnce); err != nil {
						r.Errorf("error of client %s within source_ranges at %s = %v, want nil", a, k, err)
					}
				}
				r.mustAsk(r.w.host, k)
			}
		})
	}
	for _, step := range []struct {
		name string
		n    int
	}{{"one", 1}, {"two", 2}, {"one-again", 1}} {
		r.step(step.name, func(r *rig) {
			r.apply(allow(step.n))
			check(r, step.n)
		})
	}
	r.step("one-family", func(r *rig) {
		r.apply(edited(allow(1), func(s *balancer.Service) { s.SourceRanges = s.SourceRanges[:1] }))
		r.mustAsk(r.w.client, keyOf(r.w.vip[0], vipPort, balancer.TCP))
		checkShutOut(r, r.w.clients[0][1], keyOf(r.w.vip[1], vipPort, balancer.TCP))
	})
}

// checkShutOut checks that a client outside source_ranges gets no answer, or is refused if the mode
// can't drop clients.
func checkShutOut(r *rig, source netip.Addr, key balancer.Key) {
	r.Helper()
	if r.caps.DropsClients {
		r.ignored(r.w.client, source, key)
		return
	}
	if a, err := r.askFrom(r.w.client, source, key, silence); err == nil {
		r.Errorf("client %s outside source_ranges asks %s: %s answers, want no answer", source, key, a.Server)
	}
}

// testHeldVIP sends packets to a VIP that vipd has added to the host. The VIP must answer pings and
// requests to its services' ports, and nothing else. It must never be the source of the host's own
// connections.
func testHeldVIP(r *rig) {
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		r.w.host.Echo(string(proto), "host", netip.AddrPortFrom(netip.IPv6Unspecified(), 81)) // also serves IPv4
	}
	r.apply(newService("web", r.w.vip, endpoints(r.w.servers...)...))
	r.each(func(r *rig, key balancer.Key) {
		for _, from := range []*lab.NS{r.w.client, r.w.host} {
			r.mustAsk(from, key)
			r.refused(from, keyOf(key.Addr, 81, key.Proto))
			if got := r.mustAsk(from, keyOf(r.w.node.inFamilyOf(key.Addr), 81, key.Proto)).Server; got != "host" {
				r.Errorf("server that answers at the host's own port = %s, want host", got)
			}
			from.Exec("ping", "-c", "1", "-W", "60", key.Addr.String())
		}
		lab.Eventually(r, settleTime, "a connection from an address of the host's own", func() error { // a busy kernel may be slow to add IPv6 addresses
			c, _ := r.mustOpen(r.w.host, netip.Addr{}, key)
			if own := netip.MustParseAddrPort(c.LocalAddr().String()).Addr(); !r.w.isOwn(own) {
				return fmt.Errorf("source of the host's connection to %s = %s, want an address of the host other than a VIP", key, own)
			}
			return nil
		})
	})
}
