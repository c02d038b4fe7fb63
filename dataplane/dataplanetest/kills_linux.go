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

// testKills kills processes at random moments, while they take over from the previous process and
// while they make changes. The next process must always reach the desired state, serve clients, and
// leave foreign objects unchanged.
func testKills(t *testing.T, s *Subject) {
	kills := max(3, wait.Soak(6, 50))
	if !s.Keeps { // if a process's objects disappear with the process, they can't cause problems later
		kills = max(3, wait.Soak(3, 10))
	}
	root := strings.TrimSuffix(t.Name(), "/kills")
	w := layouts()[0].build(t, lab.New(t))
	before := s.putForeign(t)
	random := rand.New(rand.NewPCG(9, 0))
	stay := newService("stay", w.vip, endpoints(w.servers...)...)
	change, lose := newService("change", vipN(61), endpoints(w.servers[0])...), newService("lose", vipN(62), endpoints(w.servers[0])...)
	gone := newService("gone", vipN(60), endpoints(w.servers...)...)
	e := errand{Local: w.own}
	for _, server := range w.servers {
		e.Servers = append(e.Servers, server.addr)
	}
	r := &rig{T: t, s: s, w: w}
	for i := range kills {
		e.Seed = uint64(i)
		once := newService("once", vipN(120+i), endpoints(w.servers[i%len(w.servers)])...)
		e.Services = []*balancer.Service{stay, change, lose, gone, once}
		c := startChild(t, root, e)
		if i%3 == 2 {
			r.pause(time.Duration(random.Int64N(int64(wait.Scaled(400 * time.Millisecond)))))
			c.kill()
			continue
		}
		c.awaitReady()
		checkTakeover(r, w.vip, vipN(120+i), w.servers[i%len(w.servers)].name, i)
		c.start()
		r.pause(time.Duration(random.Int64N(int64(wait.Scaled(100 * time.Millisecond)))))
		c.kill()
		if i%9 == 0 {
			sameForeign(t, fmt.Sprintf("after %d kills", i+1), before)
		}
	}
	r = newStill(t, s, w)
	r.drive()
	change = edited(change, func(s *balancer.Service) { s.Endpoints = endpoints(w.servers[1]) })
	lose = edited(lose, func(s *balancer.Service) { s.Endpoints = nil })
	r.apply(stay, change, lose, newService("fresh", vipN(63), endpoints(w.servers[1])...))
	checkAllServe(r, 1)
	for _, key := range keysOf(vipN(60), balancer.TCP, balancer.UDP) {
		if a, err := r.askFrom(w.client, netip.Addr{}, key, silence); err == nil {
			t.Errorf("server that answers at the removed frontend %s = %s, want none", key, a.Server)
		}
	}
	checkKernelState(r, "after the last kill")
	sameForeign(t, "after the last kill", before)
}

// checkTakeover checks two services after a new process has taken over. The service at stay always
// exists, and the service at once exists only for this takeover. i determines the family and the
// protocol of the requests.
func checkTakeover(r *rig, stay, once addrs, server string, i int) {
	r.Helper()
	r.mustAsk(r.w.client, keyOf(stay[i%2], vipPort, balancer.TCP))
	k := keyOf(once[1-i%2], vipPort, []balancer.Protocol{balancer.TCP, balancer.UDP}[i/2%2])
	if got := r.mustAsk(r.w.client, k).Server; got != server {
		r.Errorf("server that answers at %s = %s, want %s", k, got, server)
	}
}
