package dataplanetest

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// way is one way to stop a server from getting a service's new clients.
type way struct {
	name balancer.Name
	// leave edits the service so that the server e gets no new clients. If down is true, the
	// server's health checks fail.
	leave func(s *balancer.Service, e *balancer.Endpoint)
	down  bool
	vip   addrs
	// moves reports whether leave removes the server from the endpoints. If so, its UDP flows move
	// to another server immediately, and its TCP connections continue for drain_timeout.
	moves bool
}

func ways() []way {
	return []way{
		{name: "weight-0", vip: vipN(90), leave: func(_ *balancer.Service, e *balancer.Endpoint) { e.Weight = 0 }},
		{name: "draining", vip: vipN(91), leave: func(_ *balancer.Service, e *balancer.Endpoint) { e.Draining = true }},
		{name: "backup", vip: vipN(94), leave: func(_ *balancer.Service, e *balancer.Endpoint) { e.Backup = true }},
		{name: "down", vip: vipN(92), down: true},
		{name: "removed", vip: vipN(93), moves: true, leave: func(s *balancer.Service, e *balancer.Endpoint) {
			s.Endpoints = slices.DeleteFunc(s.Endpoints, func(f balancer.Endpoint) bool { return f.Address == e.Address })
		}},
	}
}

// stickyVIP returns the VIPs of this way's second service, which has affinity.
func (y way) stickyVIP() addrs {
	n := int(y.vip[0].As4()[3])
	return vipN(n + 5)
}

// services returns two services for this way, one of them with affinity. before contains the
// services with all servers, and after the services that the first server has left.
func (y way) services(servers []*server) (before, after []*balancer.Service) {
	for i, vip := range []addrs{y.vip, y.stickyVIP()} {
		s := newService(y.name+[]balancer.Name{"", "-sticky"}[i], vip, endpoints(servers...)...)
		s.Scheduler, s.DrainTimeout = balancer.RoundRobin, 100*time.Millisecond // applies only to removed endpoints
		if y.moves {
			s.DrainTimeout = time.Hour // longer than the test case
		}
		if i == 1 {
			s.Affinity = balancer.ClientIPAffinity
		}
		before, after = append(before, s), append(after, y.without(s, servers[0]))
	}
	return before, after
}

func (y way) without(s *balancer.Service, left *server) *balancer.Service {
	if y.leave == nil {
		return s
	}
	return edited(s, func(s *balancer.Service) {
		for _, a := range left.addr {
			at := slices.IndexFunc(s.Endpoints, func(e balancer.Endpoint) bool { return e.Address == a })
			y.leave(s, &s.Endpoints[at])
		}
	})
}

// targets returns the targets whose health checks must fail so that the first server gets no new
// clients.
func (y way) targets(first *server) (all []balancer.Target) {
	if !y.down {
		return nil
	}
	for _, name := range []balancer.Name{y.name, y.name + "-sticky"} {
		for _, a := range first.addr {
			all = append(all, balancer.Target{Service: name, Addr: a, Port: targetPort})
		}
	}
	return all
}

// guests holds clients' connections to the first server, through the services of one way.
type guests struct {
	way    way
	idle   []net.Conn
	busy   []*pulse
	moving []net.Conn // UDP flows that may move to another server; nil if none may move
	client addrs      // addresses of a client that affinity sends to the first server
	moved  [2]string  // servers to which this client has moved, for IPv4 and IPv6
}

// testDrains makes the first server leave services in each way, even while the vipd process is
// killed and restarted. The server's connections must continue, and it must get no new clients. The
// connections must still exist when the server is an active endpoint again.
func testDrains(t *testing.T, s *Subject) {
	w := layouts()[0].build(t, lab.New(t))
	e := errand{Local: w.own, Then: []*balancer.Service{}}
	for _, y := range ways() {
		before, after := y.services(w.servers)
		e.Services, e.Then = append(e.Services, before...), append(e.Then, after...)
		e.Down = append(e.Down, y.targets(w.servers[0])...)
	}
	all, r := s.leftBehind(t, w, e)
	if s.Keeps {
		r.stop()
		replaceDataplane(r, true)
		checkGuests(r, all, "without a process")
		r.drives(r.dp)
		r.start()
		if err := r.wait(r.set(e.Then...)); err != nil {
			t.Fatal(err)
		}
		checkGuests(r, all, "after an orderly restart")
	}
	checkReturn(r, all, e.Services)
}

// leftBehind opens connections to the first server, and makes it leave the services as e describes.
// It returns the connections, and a rig for the resulting state. If the dataplane survives a kill,
// a child process makes the changes and is then killed.
func (s *Subject) leftBehind(t *testing.T, w *world, e errand) ([]*guests, *rig) {
	t.Helper()
	if !s.Survives {
		r := newStill(t, s, w)
		r.drive()
		r.apply(e.Services...)
		all := admitGuests(r)
		r.judge(balancer.HealthDown, e.Down...)
		r.apply(e.Then...)
		checkGuests(r, all, "when the server leaves")
		return all, r
	}
	r := &rig{T: t, s: s, w: w}
	c := startChild(t, strings.TrimSuffix(t.Name(), "/drains"), e)
	c.awaitReady()
	all := admitGuests(r)
	c.start()
	c.awaitReady()
	checkGuests(r, all, "when the server leaves")
	c.kill()
	checkGuests(r, all, "after a kill")

	r = newStill(t, s, w)
	r.prepare(wait.Scaled(driverProbe))
	r.set(e.Services...) // starts the drains, which a daemon would read from disk
	r.judge(balancer.HealthDown, e.Down...)
	revision := r.set(e.Then...)
	r.start()
	r.endDriven()
	if err := r.wait(revision); err != nil {
		t.Fatal(err)
	}
	checkGuests(r, all, "after another process has taken over")
	return all, r
}

// admitGuests opens each kind of connection to the first server, through the services of each way.
func admitGuests(r *rig) (all []*guests) {
	r.Helper()
	for _, y := range ways() {
		g := &guests{way: y}
		for i, vip := range y.vip {
			tcp, udp := keyOf(vip, vipPort, balancer.TCP), keyOf(vip, vipPort, balancer.UDP)
			g.idle = append(g.idle, openTo(r, "s1", tcp))
			g.busy = append(g.busy, keepBusy(r, tcp, openTo(r, "s1", tcp), "s1"))
			if flow := openTo(r, "s1", udp); y.moves {
				g.moving = append(g.moving, flow)
			} else {
				g.busy = append(g.busy, keepBusy(r, udp, flow, "s1"))
			}
			g.client[i] = stickyClient(r, "s1", keyOf(y.stickyVIP()[i], vipPort, balancer.TCP))
			c, _ := r.mustOpen(r.w.client, g.client[i], keyOf(y.stickyVIP()[i], vipPort, balancer.TCP))
			g.idle = append(g.idle, c)
		}
		all = append(all, g)
	}
	return all
}

// stickyClient returns the address of a client that affinity sends to the server with this name.
func stickyClient(r *rig, name string, key balancer.Key) netip.Addr {
	r.Helper()
	for i, got := range askFromAll(r, key) {
		if got == name {
			return r.w.clients[i].inFamilyOf(key.Addr)
		}
	}
	r.Fatalf("%s: clients that reach %s = none, want at least one", key, name)
	return netip.Addr{}
}

// checkGuests checks that the guests' connections still work, and that the first server gets no new
// clients.
func checkGuests(r *rig, all []*guests, when string) {
	r.Helper()
	for _, g := range all {
		for _, c := range g.idle {
			if err := alive(c, atOnce); err != nil {
				r.Errorf("%s, %s: error of an idle connection to %s = %v, want nil", g.way.name, when, c.RemoteAddr(), err)
			}
		}
		for _, p := range g.busy {
			if err := p.sofar(); err != nil {
				r.Errorf("%s, %s: error of a busy connection = %v, want nil", g.way.name, when, err)
			}
		}
		for _, key := range keysOf(g.way.vip, balancer.TCP, balancer.UDP) {
			if got := r.tally(r.w.client, key, 6); got["s1"] > 0 || len(got) != 2 {
				r.Errorf("%s, %s: answers to new clients at %s by server = %v, want only answers from s2 and s3", g.way.name, when, key, got)
			}
		}
		for i, vip := range g.way.vip {
			if g.moving != nil {
				awaitMove(r, g.moving[i], keyOf(vip, vipPort, balancer.UDP), "s1")
			}
			checkMovesOnce(r, g, i, when)
		}
	}
}

func checkMovesOnce(r *rig, g *guests, family int, when string) {
	r.Helper()
	sticky := keyOf(g.way.stickyVIP()[family], vipPort, balancer.TCP)
	for range 2 {
		a, err := r.askFrom(r.w.client, g.client[family], sticky, atOnce)
		was := g.moved[family]
		switch {
		case err != nil:
			r.Errorf("%s, %s: error of a client with affinity at %s = %v, want nil", g.way.name, when, sticky, err)
		case was == "" && a.Server != "s1":
			g.moved[family] = a.Server
		case was != a.Server:
			r.Errorf("%s, %s: a client with affinity at %s moved from s1 to %q and then reached %s, want only one move", g.way.name, when, sticky, was, a.Server)
		}
	}
}

// checkReturn makes the first server an active endpoint again, and checks that its connections
// still work.
func checkReturn(r *rig, all []*guests, services []*balancer.Service) {
	r.Helper()
	r.judge(balancer.HealthUp)
	r.apply(services...)
	for _, g := range all {
		for _, c := range g.idle {
			if err := alive(c, atOnce); err != nil {
				r.Errorf("%s: error of an idle connection to %s after the server is active again = %v, want nil", g.way.name, c.RemoteAddr(), err)
			}
		}
		for i, vip := range g.way.vip {
			checkMeetsAll(r, keyOf(vip, vipPort, balancer.TCP))
			checkMeetsAll(r, keyOf(vip, vipPort, balancer.UDP))
			checkMovesOnce(r, g, i, "when the server is back")
		}
		checkUndisturbed(r, g.busy, string(g.way.name)+" and the server's return")
	}
}
