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

// exits are the ways in which the first server stops getting new connections, with VIPs of their own.
func exits() []way {
	all := slices.DeleteFunc(ways(), func(y way) bool { return y.name == "backup" })
	all = append(all, way{name: "draining-down", down: true, leave: func(_ *balancer.Service, e *balancer.Endpoint) { e.Draining = true }})
	for i := range all {
		all[i].vip = vipN(110 + i)
	}
	return all
}

// dead reports whether the server must not be reached any more by clients that start again.
func (y way) dead() bool { return y.down || y.moves }

// exit is one of the keys of a service that the first server leaves in some way while the second joins.
type exit struct {
	way
	before, after *balancer.Service
	key           balancer.Key
}

// testPortReuse stops the only server of services in each way while clients with fixed ports use them. A client without an
// answer, or that starts again from its port, must reach the other server. A SYN or INIT must not end what is established
// with a server that is alive.
func testPortReuse(r *rig) {
	first := r.w.servers[0]
	protos := []balancer.Protocol{balancer.TCP, balancer.UDP}
	if slices.Contains(r.caps.Protocols, balancer.SCTP) && !lab.HasSCTP() {
		protos = append(protos, balancer.SCTP)
		for _, s := range r.w.servers[:2] {
			r.answerSCTP(s)
		}
	}
	var all []exit
	for _, y := range exits() {
		x := exit{way: y, before: newService(y.name, y.vip, endpoints(first)...)}
		x.before.DrainTimeout, x.before.Health = time.Hour, &balancer.Health{Type: balancer.TCPHealth, OnFailure: balancer.KeepOnFailure}
		x.before.Ports = append(x.before.Ports, balancer.Port{Name: "sctp", Port: vipPort, Protocol: balancer.SCTP, TargetPort: targetPort})
		x.before.Ports = x.before.Ports[:len(protos)]
		x.after = y.without(edited(x.before, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[:2]...) }), first)
		for _, x.key = range keysOf(y.vip, protos...) {
			all = append(all, x)
		}
	}
	if r.caps.KeepsSource { // else the host is the server's client
		r.step("unanswered", func(r *rig) { r.reuseUnanswered(all) })
	}
	dead := slices.DeleteFunc(slices.Clone(all), func(x exit) bool { return !x.dead() })
	alive := slices.DeleteFunc(all, exit.dead)
	r.step("restarted", func(r *rig) { r.reuseRestarted(dead, true) })
	r.step("restarted-alive", func(r *rig) { r.reuseRestarted(alive, false) })
	r.step("forged", func(r *rig) { r.reuseForged(alive) })
}

// enter makes the first server the only server of each service.
func (r *rig) enter(all []exit) {
	r.Helper()
	r.judge(balancer.HealthUp)
	var services []*balancer.Service
	for _, x := range all {
		services = append(services, x.before)
	}
	r.apply(services...)
}

// leave makes the first server leave all services.
func (r *rig) leave(all []exit) {
	r.Helper()
	var services []*balancer.Service
	var down []balancer.Target
	for _, x := range all {
		services, down = append(services, x.after), append(down, x.targets(r.w.servers[0])...)
	}
	r.judge(balancer.HealthDown, down...)
	r.apply(services...)
}

// mute makes a server lose what it sends to clients, until the returned function is called.
func (r *rig) mute(s *server) (unmute func()) {
	r.Helper()
	change := func(verb string) {
		s.ns.Exec("ip", "-4", "route", verb, "blackhole", netip.PrefixFrom(r.w.clients[0][0], 24).Masked().String())
		s.ns.Exec("ip", "-6", "route", verb, "blackhole", netip.PrefixFrom(r.w.clients[0][1], 64).Masked().String())
	}
	change("add")
	return func() { change("del") }
}

// dialFrom connects the client from a port.
func (r *rig) dialFrom(port uint16, key balancer.Key) (c net.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience(atOnce))
	defer cancel()
	at := netip.AddrPortFrom(r.w.clients[0].of(key.Addr), port)
	return r.w.client.DialFrom(ctx, string(key.Proto), at, key.AddrPort().String())
}

// freshPort is a port from which the client has connected to nothing.
func (r *rig) freshPort() uint16 { return 1024 + r.s.ports.next()%8000 }

// reaches checks that a connection or flow is answered by a server.
func (r *rig) reaches(x exit, who string, c net.Conn, err error, name string) bool {
	r.Helper()
	if err != nil {
		r.Errorf("%s: %s: %s: %v, want %s to answer", x.name, x.key, who, err, name)
		return false
	}
	if a, err := lab.AskWithin(c, patience(atOnce)); err != nil || a.Server != name {
		r.Errorf("%s: %s: %s: answered by %q, %v, want %s", x.name, x.key, who, a.Server, err, name)
		return false
	}
	return true
}

// awaitFlow waits until conntrack knows a client's flow, or done is closed.
func (r *rig) awaitFlow(key balancer.Key, port uint16, done <-chan struct{}) {
	r.Helper()
	conn, err := conntrack.Open()
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // nothing was written
	wait.For(r.T, time.Minute, "a client's first packet", func() bool {
		select {
		case <-done:
			return true
		default:
		}
		found := false
		err := conn.Each(r.Context(), conntrack.Filter{Proto: key.Proto, Dst: key.Addr, Port: key.Port}, func(f *conntrack.Flow) error {
			found = found || f.Client().Port() == port
			return nil
		})
		return err == nil && found
	})
}

// reuseUnanswered makes the first packet of clients reach the server that leaves, which does not answer.
func (r *rig) reuseUnanswered(all []exit) {
	r.Helper()
	r.enter(all)
	unmute := r.mute(r.w.servers[0])
	defer unmute()
	var checks []func()
	for _, x := range all {
		checks = append(checks, r.unansweredClient(x))
	}
	r.leave(all)
	for _, check := range checks {
		check()
	}
}

// unansweredClient makes a client send its first packet, and returns what checks that it reaches the second server.
func (r *rig) unansweredClient(x exit) (check func()) {
	r.Helper()
	const who = "a client whose first packet was not answered"
	port := r.freshPort()
	switch x.key.Proto {
	case balancer.SCTP:
		init := sctpPacket{from: port, to: x.key.Port, chunk: sctpInit, own: sctpClientTag}
		if name, err := r.askSCTP(r.w.client, x.key, init, sctpInitAck, unanswered); err == nil {
			r.Errorf("%s: %s: %s answers while it is muted", x.name, x.key, name)
		}
		return func() { r.associatesWith(x, who, init, "s2") }
	case balancer.UDP:
		c, err := r.dialFrom(port, x.key)
		if err == nil {
			_, err = c.Write([]byte("?"))
		}
		if err != nil {
			r.Fatal(err)
		}
		return func() {
			if !r.s.VirtualServers || x.moves { // IPVS can't forget one flow of a destination
				r.movesFrom(c, x.key, "s1")
			}
			_ = c.Close()
		}
	}
	done := make(chan struct{})
	var c net.Conn
	var err error
	go func() {
		defer close(done)
		c, err = r.dialFrom(port, x.key)
	}()
	r.awaitFlow(x.key, port, done)
	return func() {
		<-done
		if r.reaches(x, who, c, err, "s2"); err == nil {
			_ = c.Close()
		}
	}
}

// reuseRestarted makes clients lose what they have with the server that leaves without a trace, and start again from the
// same ports. With mute, the server does not answer by then.
func (r *rig) reuseRestarted(all []exit, mute bool) {
	r.Helper()
	r.enter(all)
	ports := make([]uint16, len(all))
	for i, x := range all {
		switch ports[i] = r.freshPort(); x.key.Proto {
		case balancer.TCP:
			c, err := r.dialFrom(ports[i], x.key)
			if !r.reaches(x, "a client", c, err, "s1") {
				return
			}
			if err := lab.Vanish(c); err != nil {
				r.Fatal(err)
			}
		case balancer.SCTP:
			r.associated(x, ports[i])
		}
	}
	if mute {
		defer r.mute(r.w.servers[0])()
	}
	r.leave(all)
	var running sync.WaitGroup
	defer running.Wait()
	for i, x := range all {
		const who = "a client that starts again"
		switch x.key.Proto {
		case balancer.TCP:
			running.Go(func() {
				c, err := r.dialFrom(ports[i], x.key)
				if r.reaches(x, who, c, err, "s2"); err == nil {
					_ = c.Close()
				}
			})
		case balancer.SCTP:
			if mute { // else the server takes INIT as its peer's restart
				r.associatesWith(x, who, sctpPacket{from: ports[i], to: x.key.Port, chunk: sctpInit, own: sctpClientTag}, "s2")
			}
		}
	}
}

// reuseForged makes a SYN or INIT arrive on what is established.
func (r *rig) reuseForged(all []exit) {
	r.Helper()
	r.enter(all)
	conns, ports := make([]net.Conn, len(all)), make([]uint16, len(all))
	for i, x := range all {
		var err error
		switch ports[i] = r.freshPort(); x.key.Proto {
		case balancer.TCP:
			if conns[i], err = r.dialFrom(ports[i], x.key); !r.reaches(x, "a client", conns[i], err, "s1") {
				return
			}
			defer func() { _ = conns[i].Close() }()
		case balancer.SCTP:
			r.associated(x, ports[i])
		}
	}
	r.leave(all)
	const enough = 2 * silence // for whatever would end them
	for end := time.Now().Add(wait.Scaled(enough)); time.Now().Before(end) && !r.Failed(); {
		for i, x := range all {
			var err error
			switch x.key.Proto {
			case balancer.TCP:
				if err = r.w.client.SendSYN(netip.AddrPortFrom(r.w.clients[0].of(x.key.Addr), ports[i]), x.key.AddrPort()); err == nil {
					err = alive(conns[i], atOnce)
				}
			case balancer.SCTP:
				init := sctpPacket{from: ports[i], to: x.key.Port, chunk: sctpInit, own: sctpClientTag}
				_, _ = r.askSCTP(r.w.client, x.key, init, sctpInitAck, unanswered)
				err = r.echoCookie(x, ports[i])
			}
			if err != nil {
				r.Errorf("%s: %s: after a SYN or INIT from its port: %v, want it undisturbed", x.name, x.key, err)
			}
		}
	}
}

// associated makes a client have an association with the first server.
func (r *rig) associated(x exit, port uint16) {
	r.Helper()
	r.associatesWith(x, "a client", sctpPacket{from: port, to: x.key.Port, chunk: sctpInit, own: sctpClientTag}, "s1")
	if err := r.echoCookie(x, port); err != nil {
		r.Fatalf("%s: %s: %v", x.name, x.key, err)
	}
}

// echoCookie sends COOKIE ECHO, which the first server has to answer.
func (r *rig) echoCookie(x exit, port uint16) error {
	echo := sctpPacket{from: port, to: x.key.Port, tag: sctpServerTag, chunk: sctpCookieEcho, own: sctpClientTag}
	name, err := r.askSCTP(r.w.client, x.key, echo, sctpCookieAck, atOnce)
	if err == nil && name != "s1" {
		err = fmt.Errorf("COOKIE ECHO is answered by %s, want s1", name)
	}
	return err
}

// associatesWith sends INIT until it is answered.
func (r *rig) associatesWith(x exit, who string, init sctpPacket, want string) {
	r.Helper()
	r.Eventually(fmt.Sprintf("%s: %s: %s reaches %s", x.name, x.key, who, want), func() error {
		name, err := r.askSCTP(r.w.client, x.key, init, sctpInitAck, silence)
		if err == nil && name != want {
			err = fmt.Errorf("it reaches %s", name)
		}
		return err
	})
}
