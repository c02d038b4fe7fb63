package dataplanetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
	"vipd/test/lab"
	"vipd/test/wait"
)

// exits returns the ways in which the first server stops getting new connections.
func exits() []way {
	all := slices.DeleteFunc(ways(), func(y way) bool { return y.name == "backup" })
	all = append(all, way{name: "draining-down", down: true, leave: func(_ *balancer.Service, e *balancer.Endpoint) { e.Draining = true }})
	for i := range all {
		all[i].vip = vipN(110 + i)
	}
	return all
}

// dead reports whether a client that reuses the port of an old connection must reach another
// server.
func (y way) dead() bool { return y.down || y.moves }

// exit is a frontend of a service. In the test, the first server stops getting the service's new
// clients in one of the ways, and the second server is added.
type exit struct {
	way
	before, after *balancer.Service
	key           balancer.Key
}

// testPortReuse replaces the only server of several services in each way, while clients use fixed
// ports. A client without an answer, or one that connects again from its port, must reach the other
// server. A SYN or INIT must not end an established connection to a live server.
func testPortReuse(r *rig) {
	first := r.w.servers[0]
	protos := []balancer.Protocol{balancer.TCP, balancer.UDP}
	if slices.Contains(r.caps.Protocols, balancer.SCTP) && !lab.HasSCTP() {
		protos = append(protos, balancer.SCTP)
		for _, s := range r.w.servers[:2] {
			answerSCTP(r, s)
		}
	}
	var all []exit
	for _, y := range exits() {
		x := exit{way: y, before: newService(y.name, y.vip, endpoints(first)...)}
		x.before.DrainTimeout, x.before.Health = time.Hour, &balancer.Health{Type: balancer.TCPHealth, OnFailure: balancer.KeepOnFailure}
		x.before.Ports = append(x.before.Ports, balancer.Port{Name: "sctp", Port: vipPort, Protocol: balancer.SCTP, TargetPort: targetPort})
		x.before.Ports = x.before.Ports[:len(protos)]
		x.after = y.without(edited(x.before, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[:2]...) }), first)
		for _, key := range keysOf(y.vip, protos...) {
			x.key = key
			all = append(all, x)
		}
	}
	if r.caps.KeepsSource { // otherwise the server sees the host's address instead of the client's
		r.step("unanswered", func(r *rig) { reuseUnanswered(r, all) })
	}
	dead := slices.DeleteFunc(slices.Clone(all), func(x exit) bool { return !x.dead() })
	alive := slices.DeleteFunc(all, exit.dead)
	r.step("restarted", func(r *rig) { reuseRestarted(r, dead, true) })
	r.step("restarted-alive", func(r *rig) { reuseRestarted(r, alive, false) })
	r.step("forged", func(r *rig) { reuseForged(r, alive) })
}

func serveFromFirst(r *rig, all []exit) {
	r.Helper()
	r.judge(balancer.HealthUp)
	var services []*balancer.Service
	for _, x := range all {
		services = append(services, x.before)
	}
	r.apply(services...)
}

// removeFirstServer makes the first server leave all services, and adds the second server to them.
func removeFirstServer(r *rig, all []exit) {
	r.Helper()
	var services []*balancer.Service
	var down []balancer.Target
	for _, x := range all {
		services, down = append(services, x.after), append(down, x.targets(r.w.servers[0])...)
	}
	r.judge(balancer.HealthDown, down...)
	r.apply(services...)
}

// muteServer makes a server drop its packets to clients until the returned function is called.
func muteServer(r *rig, s *server) (unmute func()) {
	r.Helper()
	change := func(verb string) {
		s.ns.Exec("ip", "-4", "route", verb, "blackhole", netip.PrefixFrom(r.w.clients[0][0], 24).Masked().String())
		s.ns.Exec("ip", "-6", "route", verb, "blackhole", netip.PrefixFrom(r.w.clients[0][1], 64).Masked().String())
	}
	change("add")
	return func() { change("del") }
}

// dialFrom connects the client to a frontend from a fixed port.
func dialFrom(r *rig, port uint16, key balancer.Key) (c net.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience(atOnce))
	defer cancel()
	at := netip.AddrPortFrom(r.w.clients[0].inFamilyOf(key.Addr), port)
	return r.w.client.DialFrom(ctx, string(key.Proto), at, key.AddrPort().String())
}

// freshPort returns a client port that no earlier connection has used.
func freshPort(r *rig) uint16 { return 1024 + r.s.ports.next()%8000 }

// checkAnsweredBy checks that the server with this name answers on a connection or flow. If not,
// the test fails and it returns false.
func checkAnsweredBy(r *rig, x exit, who string, c net.Conn, err error, name string) bool {
	r.Helper()
	if err != nil {
		r.Errorf("%s: %s: %s: %v, want %s to answer", x.name, x.key, who, err, name)
		return false
	}
	if a, err := lab.AskWithin(c, patience(atOnce)); err != nil || a.Server != name {
		r.Errorf("%s: %s: %s: answer from %q, error = %v; want an answer from %s", x.name, x.key, who, a.Server, err, name)
		return false
	}
	return true
}

// awaitFlow waits until conntrack has an entry for a client's flow, or until done is closed.
func awaitFlow(r *rig, key balancer.Key, port uint16, done <-chan struct{}) {
	r.Helper()
	conn, err := conntrack.Open()
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // safe to ignore, because nothing was written to the connection
	wait.For(r.T, time.Minute, "a client's first packet", func() bool {
		select {
		case <-done:
			return true
		default:
		}
		found := false
		err := conn.Each(r.Context(), conntrack.Filter{Proto: key.Proto, Dst: key.Addr, Port: key.Port.First()}, func(f *conntrack.Flow) error {
			found = found || f.Client().Port() == port
			return nil
		})
		return err == nil && found
	})
}

// reuseUnanswered sends clients' first packets to a server that does not answer. After the server
// has left the services, the clients must reach the second server.
func reuseUnanswered(r *rig, all []exit) {
	r.Helper()
	serveFromFirst(r, all)
	unmute := muteServer(r, r.w.servers[0])
	defer unmute()
	var checks []func()
	for _, x := range all {
		checks = append(checks, unansweredClient(r, x))
	}
	removeFirstServer(r, all)
	for _, check := range checks {
		check()
	}
}

// unansweredClient sends a client's first packet. The returned function checks that the client then
// reaches the second server.
func unansweredClient(r *rig, x exit) (check func()) {
	r.Helper()
	const who = "a client whose first packet was not answered"
	port := freshPort(r)
	switch x.key.Proto {
	case balancer.SCTP:
		init := sctpPacket{from: port, to: x.key.Port.First(), chunk: sctpInit, own: sctpClientTag}
		if name, err := askSCTP(r, r.w.client, x.key, init, sctpInitAck, unanswered); err == nil {
			r.Errorf("%s: %s: %s answers while it is muted, want no answer", x.name, x.key, name)
		}
		return func() { checkAssociates(r, x, who, init, "s2") }
	case balancer.UDP:
		c, err := dialFrom(r, port, x.key)
		if err == nil {
			_, err = c.Write([]byte("?"))
		}
		if err != nil {
			r.Fatal(err)
		}
		return func() {
			if !r.s.VirtualServers || x.moves { // IPVS can't delete a single flow
				awaitMove(r, c, x.key, "s1")
			}
			_ = c.Close()
		}
	}
	done := make(chan struct{})
	var c net.Conn
	var err error
	go func() {
		defer close(done)
		c, err = dialFrom(r, port, x.key)
	}()
	awaitFlow(r, x.key, port, done)
	return func() {
		<-done
		if checkAnsweredBy(r, x, who, c, err, "s2"); err == nil {
			_ = c.Close()
		}
	}
}

// reuseRestarted makes clients lose their connections without a FIN or reset, and connect again
// from the same ports. If mute is true, the old server no longer answers. The clients must reach
// the second server.
func reuseRestarted(r *rig, all []exit, mute bool) {
	r.Helper()
	serveFromFirst(r, all)
	ports := make([]uint16, len(all))
	for i, x := range all {
		switch ports[i] = freshPort(r); x.key.Proto {
		case balancer.TCP:
			c, err := dialFrom(r, ports[i], x.key)
			if !checkAnsweredBy(r, x, "a client", c, err, "s1") {
				return
			}
			if err := lab.Vanish(c); err != nil {
				r.Fatal(err)
			}
		case balancer.SCTP:
			associate(r, x, ports[i])
		}
	}
	if mute {
		defer muteServer(r, r.w.servers[0])()
	}
	removeFirstServer(r, all)
	var running sync.WaitGroup
	defer running.Wait()
	for i, x := range all {
		const who = "a client that starts again"
		switch x.key.Proto {
		case balancer.TCP:
			running.Go(func() {
				c, err := dialFrom(r, ports[i], x.key)
				if checkAnsweredBy(r, x, who, c, err, "s2"); err == nil {
					_ = c.Close()
				}
			})
		case balancer.SCTP:
			if mute { // otherwise the old server would treat INIT as a restart of its client
				checkAssociates(r, x, who, sctpPacket{from: ports[i], to: x.key.Port.First(), chunk: sctpInit, own: sctpClientTag}, "s2")
			}
		}
	}
}

// reuseForged sends a SYN or INIT from the ports of established connections. The connections must
// survive.
func reuseForged(r *rig, all []exit) {
	r.Helper()
	serveFromFirst(r, all)
	conns, ports := make([]net.Conn, len(all)), make([]uint16, len(all))
	for i, x := range all {
		var err error
		switch ports[i] = freshPort(r); x.key.Proto {
		case balancer.TCP:
			if conns[i], err = dialFrom(r, ports[i], x.key); !checkAnsweredBy(r, x, "a client", conns[i], err, "s1") {
				return
			}
			defer func() { _ = conns[i].Close() }()
		case balancer.SCTP:
			associate(r, x, ports[i])
		}
	}
	removeFirstServer(r, all)
	const enough = 2 * silence // a faulty dataplane would end the connections within this time
	for end := time.Now().Add(wait.Scaled(enough)); time.Now().Before(end) && !r.Failed(); {
		for i, x := range all {
			var err error
			switch x.key.Proto {
			case balancer.TCP:
				if err = r.w.client.SendSYN(netip.AddrPortFrom(r.w.clients[0].inFamilyOf(x.key.Addr), ports[i]), x.key.AddrPort()); err == nil {
					err = alive(conns[i], atOnce)
				}
			case balancer.SCTP:
				init := sctpPacket{from: ports[i], to: x.key.Port.First(), chunk: sctpInit, own: sctpClientTag}
				_, _ = askSCTP(r, r.w.client, x.key, init, sctpInitAck, unanswered)
				err = echoCookie(r, x, ports[i])
			}
			if err != nil {
				r.Errorf("%s: %s: error of a connection after a SYN or INIT from its port = %v, want nil", x.name, x.key, err)
			}
		}
	}
}

func associate(r *rig, x exit, port uint16) {
	r.Helper()
	checkAssociates(r, x, "a client", sctpPacket{from: port, to: x.key.Port.First(), chunk: sctpInit, own: sctpClientTag}, "s1")
	if err := echoCookie(r, x, port); err != nil {
		r.Fatalf("%s: %s: error after COOKIE ECHO = %v, want nil", x.name, x.key, err)
	}
}

// echoCookie sends COOKIE ECHO from a client's port. The first server must answer it.
func echoCookie(r *rig, x exit, port uint16) error {
	echo := sctpPacket{from: port, to: x.key.Port.First(), tag: sctpServerTag, chunk: sctpCookieEcho, own: sctpClientTag}
	name, err := askSCTP(r, r.w.client, x.key, echo, sctpCookieAck, atOnce)
	if err == nil && name != "s1" {
		err = fmt.Errorf("server that answers COOKIE ECHO = %s, want s1", name)
	}
	return err
}

// checkAssociates sends INIT repeatedly until the server named want answers.
func checkAssociates(r *rig, x exit, who string, init sctpPacket, want string) {
	r.Helper()
	r.Eventually(fmt.Sprintf("%s: %s: %s reaches %s", x.name, x.key, who, want), func() error {
		name, err := askSCTP(r, r.w.client, x.key, init, sctpInitAck, silence)
		if err == nil && name != want {
			err = fmt.Errorf("INIT was answered by %s", name)
		}
		return err
	})
}
