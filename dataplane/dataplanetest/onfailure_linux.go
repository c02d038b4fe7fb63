package dataplanetest

import (
	"fmt"
	"net"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
)

// consequence is what a service has become of the connections of an endpoint that is found down.
type consequence struct {
	name      balancer.Name
	onFailure balancer.OnFailure
	vip       addrs
	// cut are the protocols whose connections end; those of others live on.
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

// testOnFailure has the first server be found down while it has clients of each kind: where connections are to be cut,
// clients learn of it at once; where they are to be kept they live on, and so do those of other servers. Then it is up
// again.
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
		first, own net.Conn // with the server that fails, and with another
	}
	var all []visit
	for _, c := range consequences() {
		for _, vip := range c.vip {
			for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
				key := keyOf(vip, vipPort, proto)
				all = append(all, visit{c, key, r.openTo("s1", key), r.openTo("s2", key)})
			}
		}
	}
	r.judge(balancer.HealthDown, failed...)
	r.apply(services...)
	for _, v := range all {
		switch {
		case !v.of.cut[v.key.Proto]:
			r.stays(v.of.name, v.key, v.first, "s1")
		case v.key.Proto == balancer.UDP:
			r.movesFrom(v.first, v.key, "s1")
		default:
			lab.Eventually(r, atOnce, fmt.Sprintf("%s: %s: the end of a connection that is to be cut", v.of.name, v.key), func() error {
				if alive(v.first, 500*time.Millisecond) == nil {
					return fmt.Errorf("it carries data")
				}
				return nil
			})
		}
		r.stays(v.of.name, v.key, v.own, "s2")
		if got := r.tally(r.w.client, v.key, 4); got["s1"] > 0 {
			r.Errorf("%s: %s: new clients are answered by %v, the first of which is down", v.of.name, v.key, got)
		}
	}
	r.judge(balancer.HealthUp)
	r.apply(services...)
	for _, v := range all {
		if !v.of.cut[v.key.Proto] {
			r.stays(v.of.name, v.key, v.first, "s1")
		}
		r.stays(v.of.name, v.key, v.own, "s2")
		r.meetsAll(v.key)
	}
}

// stays checks that a connection or flow that was with a server still is.
func (r *rig) stays(of balancer.Name, key balancer.Key, c net.Conn, name string) {
	r.Helper()
	if key.Proto == balancer.UDP {
		if a, err := lab.AskWithin(c, patience(atOnce)); err != nil || a.Server != name {
			r.Errorf("%s: %s: on a flow of %s %q answers, %v", of, key, name, a.Server, err)
		}
		return
	}
	if err := alive(c, atOnce); err != nil {
		r.Errorf("%s: %s: a connection of %s: %v, want it to live on", of, key, name, err)
	}
}
