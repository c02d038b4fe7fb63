package dataplanetest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// testRestart has a process that carries services out killed without warning. A new one over what is left comes to
// what is wanted by then, with nothing left over.
func testRestart(t *testing.T, s *Subject) {
	root := strings.TrimSuffix(t.Name(), "/restart")
	w := layouts()[0].build(t, lab.New(t))
	stay := newService("stay", w.vip, endpoints(w.servers...)...)
	gone := newService("gone", vipN(60), endpoints(w.servers...)...)
	change := newService("change", vipN(61), endpoints(w.servers[0])...)
	lose := newService("lose", vipN(62), endpoints(w.servers[0])...)
	fresh := newService("fresh", vipN(63), endpoints(w.servers[1])...)

	c := startChild(t, root, errand{Local: w.own, Services: []*balancer.Service{stay, gone, change, lose}})
	c.awaitReady()
	r := &rig{T: t, s: s, w: w}
	r.mustAsk(w.client, keyOf(w.vip[0], vipPort, balancer.TCP))
	c.kill()

	r = newStill(t, s, w)
	r.drive()
	change = edited(change, func(s *balancer.Service) { s.Endpoints = endpoints(w.servers[1]) })
	lose = edited(lose, func(s *balancer.Service) { s.Endpoints = nil })
	r.apply(stay, change, lose, fresh)
	r.each(func(r *rig, key balancer.Key) {
		at := func(vip addrs) balancer.Key { return keyOf(vip.of(key.Addr), vipPort, key.Proto) }
		r.mustAsk(w.client, key)
		for _, vip := range []addrs{vipN(61), vipN(63)} {
			if got := r.mustAsk(w.client, at(vip)).Server; got != "s2" {
				r.Errorf("%s is answered by %s, want s2", at(vip), got)
			}
		}
		r.refused(w.client, at(vipN(62)))
		if a, err := r.askFrom(w.client, netip.Addr{}, at(vipN(60)), silence); err == nil {
			r.Errorf("%s, which is wanted no more, is answered by %s", at(vipN(60)), a.Server)
		}
	})
	r.asWanted("after a restart")
}

// testKills has processes killed, one after the other, at random moments: while they take over what the one before left,
// and within a stream of changes. Each comes to what is wanted by then, clients are served, nothing is left over, and
// what others have stays as it is.
func testKills(t *testing.T, s *Subject) {
	kills := max(3, wait.Soak(6, 50))
	if !s.Keeps { // what dies with its process leaves little that could go wrong
		kills = max(3, wait.Soak(3, 10))
	}
	root := strings.TrimSuffix(t.Name(), "/kills")
	w := layouts()[0].build(t, lab.New(t))
	before := s.putForeign(t)
	random := rand.New(rand.NewPCG(9, 0))
	stay := newService("stay", w.vip, endpoints(w.servers...)...)
	e := errand{Local: w.own}
	for _, server := range w.servers {
		e.Servers = append(e.Servers, server.addr)
	}
	r := &rig{T: t, s: s, w: w}
	for i := range kills {
		e.Seed = uint64(i)
		once := newService("once", vipN(120+i), endpoints(w.servers[i%len(w.servers)])...)
		e.Services = []*balancer.Service{stay, once}
		c := startChild(t, root, e)
		if i%3 == 2 {
			r.pause(time.Duration(random.Int64N(int64(wait.Scaled(400 * time.Millisecond)))))
			c.kill()
			continue
		}
		c.awaitReady()
		r.takesOver(w.vip, vipN(120+i), w.servers[i%len(w.servers)].name, i)
		c.goOn()
		r.pause(time.Duration(random.Int64N(int64(wait.Scaled(100 * time.Millisecond)))))
		c.kill()
		if i%9 == 0 {
			sameForeign(t, fmt.Sprintf("after %d kills", i+1), before)
		}
	}
	r = newStill(t, s, w)
	r.drive()
	r.apply(stay, newService("once", vipN(119), endpoints(w.servers[0])...))
	r.servesWanted(1)
	r.asWanted("after the last kill")
	sameForeign(t, "after the last kill", before)
}

// takesOver asks, of each kind one, what one process after another serves, and what this one alone does.
func (r *rig) takesOver(stay, once addrs, server string, i int) {
	r.Helper()
	r.mustAsk(r.w.client, keyOf(stay[i%2], vipPort, balancer.TCP))
	k := keyOf(once[1-i%2], vipPort, []balancer.Protocol{balancer.TCP, balancer.UDP}[i/2%2])
	if got := r.mustAsk(r.w.client, k).Server; got != server {
		r.Errorf("%s is answered by %s, want %s", k, got, server)
	}
}
