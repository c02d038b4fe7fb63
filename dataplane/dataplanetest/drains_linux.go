package dataplanetest

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// drainTime returns the drain_timeout for test cases that wait until it expires. It is longer than
// these cases' preparations.
func drainTime() time.Duration { return min(wait.Scaled(time.Second), 5*time.Second) }

// testDrainTimeout removes an endpoint. Its connections must be reset after drain_timeout, and not
// before. Connections to other endpoints must continue.
func testDrainTimeout(r *rig) {
	all := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	all.Scheduler, all.DrainTimeout = balancer.RoundRobin, drainTime()
	r.apply(all)
	keys := keysOf(r.w.vip, balancer.TCP)
	var leaving, staying []net.Conn
	for _, k := range keys {
		leaving = append(leaving, openTo(r, "s1", k))
		staying = append(staying, openTo(r, "s2", k))
	}
	removed := time.Now()
	r.apply(edited(all, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[1:]...) }))
	checkEndInTime(r, "a removed endpoint", keys, leaving, removed)
	for i, k := range keys {
		if err := alive(staying[i], atOnce); err != nil {
			r.Errorf("%s: error of a connection to another endpoint = %v, want nil", k, err)
		}
	}
}

// checkEndInTime checks that connections are reset drainTime() after removed, and not before.
// Clients that send data afterwards must notice the reset.
func checkEndInTime(r *rig, of string, keys []balancer.Key, conns []net.Conn, removed time.Time) {
	r.Helper()
	ended := make([]time.Duration, len(conns))
	due := removed.Add(drainTime())
	for slices.Contains(ended, 0) && time.Since(due) < wait.Scaled(settleTime) {
		for i, c := range conns {
			if ended[i] > 0 {
				continue
			}
			asked, within := time.Now(), atOnce
			if asked.After(due) {
				within = 500 * time.Millisecond
			}
			switch err := alive(c, within); {
			case errors.Is(err, os.ErrDeadlineExceeded):
				ended[i] = asked.Sub(removed)
			case err != nil:
				ended[i] = time.Since(removed)
			}
		}
		r.pause(20 * time.Millisecond)
	}
	for i, k := range keys {
		switch {
		case ended[i] == 0:
			r.Errorf("%s: connection of %s still works %v after the end of drain_timeout (%v), want an error", k, of, time.Since(removed)-drainTime(), drainTime())
		case ended[i] < drainTime():
			r.Errorf("%s: lifetime of the connection of %s = %v, want at least drain_timeout (%v)", k, of, ended[i], drainTime())
		}
	}
}

// testServiceDrains removes services. Their connections to VIPs and node ports must continue for
// drain_timeout. New clients must be refused.
func testServiceDrains(r *rig) {
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	web.DrainTimeout = drainTime()
	for i := range web.Ports {
		web.Ports[i].NodePort = nodePort
	}
	long := edited(web, func(s *balancer.Service) {
		s.Name, s.VIPs, s.DrainTimeout = "long", vipN(33).slice(), time.Hour // longer than the test case
		for i := range s.Ports {
			s.Ports[i].NodePort++
		}
	})
	other := newService("other", vipN(30), endpoints(r.w.servers...)...)
	r.apply(web, long, other)
	open := func(vip addrs, port uint16) (keys []balancer.Key, conns []net.Conn) {
		r.Helper()
		for i, a := range vip {
			for _, k := range []balancer.Key{keyOf(a, vipPort, balancer.TCP), keyOf(r.w.node[i], port, balancer.TCP)} {
				c, _ := r.mustOpen(r.w.client, netip.Addr{}, k)
				keys, conns = append(keys, k), append(conns, c)
			}
		}
		return keys, conns
	}
	keys, conns := open(r.w.vip, nodePort)
	longer, stay := open(vipN(33), nodePort+1)
	removed := time.Now()
	r.apply(other)
	for _, k := range longer {
		for _, from := range []*lab.NS{r.w.client, r.w.host} {
			r.refused(from, k)
		}
	}
	checkEndInTime(r, "a removed service", keys, conns, removed)
	for i, k := range longer {
		if err := alive(stay[i], atOnce); err != nil {
			r.Errorf("%s: error of a removed service's connection before drain_timeout = %v, want nil", k, err)
		}
	}
}
