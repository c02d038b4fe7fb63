package dataplanetest

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/test/wait"
)

// share is a scheduler and the weights of the servers s1, s2 and s3.
type share struct {
	scheduler balancer.Scheduler
	weights   []int
	slack     float64 // permitted deviation, as fair expects it
	// n is the number of connections, which is rounded to whole round robin cycles. If held is
	// true, the connections stay open while others are opened.
	n    int
	held bool
}

func shares() []share {
	equal, ramp := []int{1, 1, 1}, []int{1, 2, 3}
	return []share{
		{balancer.RoundRobin, equal, exact, 30, false},
		{balancer.WeightedRoundRobin, ramp, byChance, 240, false},
		{balancer.WeightedRoundRobin, []int{20, 0, 1}, byChance, 210, false},
		{balancer.Random, ramp, byChance, 300, false},
		{balancer.LeastConn, equal, exact, 12, true},
		{balancer.WeightedLeastConn, ramp, exact, 12, true},
		{balancer.ShortestDelay, ramp, nearly, 12, true},
		{balancer.NeverQueue, ramp, nearly, 12, true},
	}
}

// testShares opens connections with each scheduler. Each server must get its share of connections
// by weight.
func testShares(r *rig) {
	var services []*balancer.Service
	for i, sh := range shares() {
		web := newService(balancer.Name(fmt.Sprint("share", i)), vipN(70+i), weightedEndpoints(r.w.servers, sh.weights)...)
		web.Scheduler = sh.scheduler
		services = append(services, web)
	}
	r.apply(services...)
	for i, sh := range shares() {
		r.step(fmt.Sprintf("%s-%d-%d-%d", sh.scheduler, sh.weights[0], sh.weights[1], sh.weights[2]), func(r *rig) {
			if instead, ok := r.caps.Nearest[sh.scheduler]; ok && sh.held {
				r.Skipf("%s does %s instead of %s", r.caps.Mode, instead, sh.scheduler)
			}
			hands := func(r *rig, key balancer.Key) {
				key.Addr = vipN(70 + i).inFamilyOf(key.Addr)
				checkShare(r, sh, key)
			}
			r.eachOf(balancer.TCP, hands)
			if !sh.held { // modes differ in what they count as a UDP connection
				r.eachOf(balancer.UDP, hands)
			}
		})
	}
}

func checkShare(r *rig, sh share, key balancer.Key) {
	got, weights, n, cycle := map[string]int{}, map[string]int{}, sh.n, 0
	for i, w := range sh.weights {
		weights[r.w.servers[i].name] = w
		cycle += w
	}
	if !sh.held {
		if r.s.ExactWeights {
			n = min(n, 5*cycle) // a few cycles are enough for exact shares
		}
		n = max(wait.Load(n)/cycle, 1) * cycle
	}
	for range n {
		if sh.held {
			_, a := r.mustOpen(r.w.client, netip.Addr{}, key)
			got[a.Server]++
		} else {
			got[r.mustAsk(r.w.client, key).Server]++
		}
	}
	slack := sh.slack
	if sh.scheduler == balancer.WeightedRoundRobin && r.s.ExactWeights {
		slack = exact
	}
	if err := fair(got, weights, slack); err != nil {
		r.Errorf("%s: %v", sh.scheduler, err)
	}
}

// These constants limit how far a server's connections may deviate from its share by weight.
// byChance means that the distribution must be plausible for a random choice, with an error
// probability of one in a billion.
const (
	exact    = 0
	nearly   = 1
	byChance = -1
)

// fair returns an error if connections were not distributed by weight. Each server's number of
// connections may differ from the expected number by slack.
func fair[K comparable](got, weights map[K]int, slack float64) error {
	n, sum := 0, 0
	for k, g := range got {
		if weights[k] == 0 {
			return fmt.Errorf("connections of %v = %d, want 0 because its weight is 0", k, g)
		}
		n += g
	}
	for _, w := range weights {
		sum += w
	}
	chi, off, shares := 0.0, 0.0, 0
	for k, w := range weights {
		if w == 0 {
			continue
		}
		due := float64(n) * float64(w) / float64(sum)
		d := float64(got[k]) - due
		chi, off, shares = chi+d*d/due, max(off, math.Abs(d)), shares+1
	}
	limit := chiLimit(shares - 1)
	switch {
	case slack != byChance && off > slack:
		return fmt.Errorf("%d connections were shared %v by weights %v, one share differs from its expected value by %.1f, want at most %.0f", n, got, weights, off, slack)
	case slack == byChance && chi > limit:
		return fmt.Errorf("%d connections were shared %v by weights %v: chi-square %.1f, want at most %.1f", n, got, weights, chi, limit)
	}
	return nil
}

// testStickySchedulers uses a service with each scheduler that hashes addresses. A client must
// always reach the same server, and with dh, all clients of a VIP must reach one server. When a
// server drains, its clients must reach other servers.
func testStickySchedulers(r *rig) {
	for _, scheduler := range []balancer.Scheduler{balancer.SourceHash, balancer.Maglev, balancer.DestinationHash} {
		if instead, ok := r.caps.Nearest[scheduler]; ok {
			r.Logf("%s does %s instead of %s", r.caps.Mode, instead, scheduler)
			continue
		}
		web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
		web.Scheduler = scheduler
		r.apply(web)
		first := map[balancer.Key][]string{}
		for _, key := range keysOf(r.w.vip, balancer.TCP, balancer.UDP) {
			first[key] = askFromAll(r, key)
			for range 3 {
				if again := askFromAll(r, key); !slices.Equal(again, first[key]) {
					r.Errorf("%s, %s: servers of the clients = %v, want %v as before", scheduler, key, again, first[key])
				}
			}
			if n := len(distinct(first[key])); (n == 1) != (scheduler == balancer.DestinationHash) {
				r.Errorf("%s, %s: %d clients have %d servers, want one server with dh and several with other schedulers", scheduler, key, len(first[key]), n)
			}
		}
		for key, names := range first {
			if key.Proto != balancer.TCP {
				continue
			}
			leaving := r.w.servers[slices.IndexFunc(r.w.servers, func(s *server) bool { return s.name == names[0] })]
			r.apply(edited(web, func(s *balancer.Service) {
				for i := range s.Endpoints {
					s.Endpoints[i].Draining = slices.Contains(leaving.addr[:], s.Endpoints[i].Address)
				}
			}))
			if now := askFromAll(r, key); slices.Contains(now, leaving.name) {
				r.Errorf("%s, %s: while %s drains, servers of the clients = %v, want only other servers", scheduler, key, leaving.name, now)
			}
		}
	}
}

// askFromAll sends a request from each of the client's addresses. It returns the servers that
// answered, in the order of the addresses.
func askFromAll(r *rig, key balancer.Key) []string {
	r.Helper()
	var names []string
	for _, c := range r.w.clients {
		a, err := r.askFrom(r.w.client, c.inFamilyOf(key.Addr), key, atOnce)
		if err != nil {
			r.Fatalf("error of client %s at %s = %v, want nil", c.inFamilyOf(key.Addr), key, err)
		}
		names = append(names, a.Server)
	}
	return names
}

func distinct(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
