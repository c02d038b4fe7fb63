package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// consequence is a value of on_failure and its effect on an endpoint's connections when its health
// check fails.
type consequence struct {
	name      balancer.Name
	onFailure balancer.OnFailure
	vip       addrs
	// cut holds the protocols whose connections must be closed. Other connections must continue.
	cut map[balancer.Protocol]bool
}

func consequences() []consequence {
	const tcp, udp = balancer.TCP, balancer.UDP
	return []consequence{
		{"default", "", vipN(60), map[balancer.Protocol]bool{udp: true}},
		{"cut", balancer.CutOnFailure, vipN(61), map[balancer.Protocol]bool{tcp: true, udp: true}},
		{"keep", balancer.KeepOnFailure, vipN(62), nil},
	}
}

// testOnFailure makes the health checks of the first server fail. Its connections must be closed or
// continue as on_failure specifies, and connections to other servers must continue. After it
// recovers, the first server must serve clients again.
func testOnFailure(r *rig) {
	var services []*balancer.Service
	var failed []balancer.Target
	for _, c := range consequences() {
		s := newService(c.name, c.vip, endpoints(r.w.servers...)...)
		s.Scheduler, s.Health = balancer.RoundRobin, &balancer.Health{Type: balancer.TCPHealth, OnFailure: c.onFailure}
		services = append(services, s)
		for _, a := range r.w.servers[0].addr {
			failed = append(failed, balancer.Target{Service: c.name, Addr: a, Port: targetPort})
		}
	}
	r.apply(services...)
	type visit struct {
		of         consequence
		key        balancer.Key
		first, own net.Conn // connections to the server whose checks fail, and to another server
		local      net.Conn // TCP connection from the host to the server whose checks fail
	}
	var all []visit
	for _, c := range consequences() {
		for _, key := range keysOf(c.vip, balancer.TCP, balancer.UDP) {
			v := visit{of: c, key: key}
			if key.Proto == balancer.TCP {
				v.first, v.local = openAgain(r, r.w.client, "s1", key), openAgain(r, r.w.host, "s1", key)
			} else {
				v.first = openTo(r, "s1", key)
			}
			v.own = openTo(r, "s2", key)
			all = append(all, v)
		}
	}
	r.judge(balancer.HealthDown, failed...)
	r.apply(services...)
	for _, v := range all {
		switch {
		case !v.of.cut[v.key.Proto]:
			checkStays(r, v.of.name, v.key, v.first, "s1")
		case v.key.Proto == balancer.UDP:
			awaitMove(r, v.first, v.key, "s1")
		default:
			checkEnded(r, v.first, fmt.Sprintf("%s: %s: a client", v.of.name, v.key))
			checkEnded(r, v.local, fmt.Sprintf("%s: %s: a client on the host", v.of.name, v.key))
		}
		checkStays(r, v.of.name, v.key, v.own, "s2")
		if got := r.tally(r.w.client, v.key, 4); got["s1"] > 0 {
			r.Errorf("%s: %s: servers of new clients = %v, want only servers other than s1, which is down", v.of.name, v.key, got)
		}
	}
	r.judge(balancer.HealthUp)
	r.apply(services...)
	for _, v := range all {
		if !v.of.cut[v.key.Proto] {
			checkStays(r, v.of.name, v.key, v.first, "s1")
		}
		checkStays(r, v.of.name, v.key, v.own, "s2")
		checkMeetsAll(r, v.key)
	}
}

// checkEnded checks that a client notices when it sends data that its connection was closed.
func checkEnded(r *rig, c net.Conn, what string) {
	r.Helper()
	r.Eventually(what+" notices the end of its connection", func() error {
		switch err := alive(c, time.Second); {
		case err == nil:
			return errors.New("the connection still carries data")
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.New("sent data gets no answer")
		}
		return nil
	})
}

// openAgain opens connections from one port of a client until each server has closed one, so each
// server has that client port in TIME_WAIT. It returns one more connection from the port, to the
// server with this name.
func openAgain(r *rig, from *lab.NS, name string, key balancer.Key) net.Conn {
	r.Helper()
	source := netip.AddrPortFrom(r.addressOf(from, key.Addr), 0) // port 0 lets the kernel choose the port of the first connection
	var c net.Conn
	dial := func() (err error) { // the port becomes free shortly after the previous connection has closed
		ctx, cancel := context.WithTimeout(context.Background(), wait.Scaled(atOnce))
		defer cancel()
		c, err = from.DialFrom(ctx, "tcp", source, key.AddrPort().String())
		return err
	}
	met := map[string]bool{}
	for range 20 * len(r.w.servers) {
		r.Eventually(fmt.Sprintf("%s connects to %s", source, key), dial)
		source = netip.MustParseAddrPort(c.LocalAddr().String())
		a, err := lab.AskWithin(c, patience(atOnce))
		if err != nil {
			r.Fatalf("error of %s at %s = %v, want nil", source, key, err)
		}
		if a.Server == name && len(met) == len(r.w.servers) {
			r.Cleanup(func() { _ = c.Close() })
			return c
		}
		checkHangUp(r, a, c)
		met[a.Server] = true
	}
	r.Fatalf("no answer from %s at %s, want at least one", name, key)
	return nil
}

// checkHangUp checks that a connection is closed on both sides: the server closes it first, and
// then the client.
func checkHangUp(r *rig, a lab.Answer, c net.Conn) {
	r.Helper()
	err := echoOf(r, a).HangUp(a.Client)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(patience(atOnce)))
	}
	if err == nil {
		if _, err = c.Read(make([]byte, 1)); err == io.EOF {
			err = c.Close()
		}
	}
	if err != nil {
		r.Fatalf("error when %s closes its connection = %v, want nil", a.Server, err)
	}
}

// echoOf returns the echo server from which a client got an answer over TCP.
func echoOf(r *rig, a lab.Answer) *lab.Server {
	r.Helper()
	return serverOf(r, a).echo[keyOf(a.Local.Addr(), a.Local.Port(), balancer.TCP)]
}

func serverOf(r *rig, a lab.Answer) *server {
	r.Helper()
	at := slices.IndexFunc(r.w.servers, func(s *server) bool { return s.name == a.Server })
	if at < 0 {
		r.Fatalf("answer from %q, want an answer from one of the servers", a.Server)
	}
	return r.w.servers[at]
}

// checkStays checks that the server with this name still answers on a connection or flow.
func checkStays(r *rig, of balancer.Name, key balancer.Key, c net.Conn, name string) {
	r.Helper()
	if key.Proto == balancer.UDP {
		if a, err := lab.AskWithin(c, patience(atOnce)); err != nil || a.Server != name {
			r.Errorf("%s: %s: flow of %s is answered by %q, error = %v; want the same server", of, key, name, a.Server, err)
		}
		return
	}
	if err := alive(c, atOnce); err != nil {
		r.Errorf("%s: %s: error of a connection to %s = %v, want nil", of, key, name, err)
	}
}
