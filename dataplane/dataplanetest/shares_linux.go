package dataplanetest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/test/wait"
)

// share is a scheduler with the weights of s1, s2, s3.
type share struct {
	scheduler balancer.Scheduler
	weights   []int
	// judge compares what each server got of n connections.
	judge func(s *Subject, got map[string]int, weights []int, n int) error
	// n, whole cycles, is how many connections are made; held: they stay open while the next are made.
	n    int
	held bool
}

func shares() []share {
	equal, ramp := []int{1, 1, 1}, []int{1, 2, 3}
	return []share{
		{balancer.RoundRobin, equal, exactly, 30, false},
		{balancer.WeightedRoundRobin, ramp, exactlyIfPromised, 240, false},
		{balancer.WeightedRoundRobin, []int{20, 0, 1}, exactlyIfPromised, 210, false},
		{balancer.Random, ramp, likely, 300, false},
		{balancer.LeastConn, equal, exactly, 12, true},
		{balancer.WeightedLeastConn, ramp, exactly, 12, true},
		{balancer.ShortestDelay, ramp, nearly, 12, true},
		{balancer.NeverQueue, ramp, nearly, 12, true},
	}
}

// testShares has every scheduler hand out connections in the shares that the weights ask for.
func testShares(r *rig) {
	var services []*balancer.Service
	for i, sh := range shares() {
		web := newService(balancer.Name(fmt.Sprint("share", i)), vipN(70+i), weighted(r.w.servers, sh.weights)...)
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
				key.Addr = vipN(70 + i).of(key.Addr)
				r.hands(sh, key)
			}
			r.eachOf(balancer.TCP, hands)
			if !sh.held { // what a UDP connection is differs from mode to mode
				r.eachOf(balancer.UDP, hands)
			}
		})
	}
}

func (r *rig) hands(sh share, key balancer.Key) {
	got, n := map[string]int{}, sh.n
	if !sh.held {
		cycle := 0
		for _, w := range sh.weights {
			cycle += w
		}
		if r.s.ExactWeights {
			n = min(n, 5*cycle) // of what is exact, a few cycles show all
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
	if err := sh.judge(r.s, got, sh.weights, n); err != nil {
		r.Errorf("%s with weights %v: %v", sh.scheduler, sh.weights, err)
	}
}

// due is what each server is owed of n connections.
func due(weights []int, n int) map[string]float64 {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	want := map[string]float64{}
	for i, w := range weights {
		if w > 0 {
			want[fmt.Sprint("s", i+1)] = float64(n) * float64(w) / float64(sum)
		}
	}
	return want
}

// within checks that no server is off what is due by more than slack.
func within(got map[string]int, want map[string]float64, slack float64) error {
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			return fmt.Errorf("shares %v, want %v", got, want)
		}
	}
	for name, w := range want {
		if d := float64(got[name]) - w; d > slack || d < -slack {
			return fmt.Errorf("shares %v, want %v, each within %v", got, want, slack)
		}
	}
	return nil
}

func exactly(_ *Subject, got map[string]int, weights []int, n int) error {
	return within(got, due(weights, n), 0)
}

func nearly(_ *Subject, got map[string]int, weights []int, n int) error {
	return within(got, due(weights, n), 1)
}

func exactlyIfPromised(s *Subject, got map[string]int, weights []int, n int) error {
	if s.ExactWeights {
		return exactly(s, got, weights, n)
	}
	return likely(s, got, weights, n)
}

// likely fails shares that random choice by these weights yields less than once in a million times.
func likely(_ *Subject, got map[string]int, weights []int, n int) error {
	want := due(weights, n)
	chi := 0.0
	for name, g := range got {
		w, ok := want[name]
		if !ok {
			return fmt.Errorf("shares %v, want %v", got, want)
		}
		chi += (float64(g) - w) * (float64(g) - w) / w
		delete(want, name)
	}
	for _, w := range want {
		chi += w // got none
	}
	if limit := chiLimit(len(due(weights, n)) - 1); chi > limit {
		return fmt.Errorf("shares %v of %v: chi-square %.1f, want at most %.1f", got, due(weights, n), chi, limit)
	}
	return nil
}

// testStickySchedulers has the hashes keep a client, or a VIP, on one server.
func testStickySchedulers(r *rig) {
	for _, scheduler := range []balancer.Scheduler{balancer.SourceHash, balancer.Maglev, balancer.DestinationHash} {
		if instead, ok := r.caps.Nearest[scheduler]; ok {
			r.Logf("%s does %s instead of %s", r.caps.Mode, instead, scheduler)
			continue
		}
		web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
		web.Scheduler = scheduler
		r.apply(web)
		r.each(func(r *rig, key balancer.Key) {
			if scheduler == balancer.DestinationHash {
				r.oneServerForAll(key)
				return
			}
			first := r.askAll(key)
			for range 3 {
				if again := r.askAll(key); !slices.Equal(again, first) {
					r.Errorf("%s: clients are answered by %v, then by %v", scheduler, first, again)
				}
			}
			if len(distinct(first)) < 2 {
				r.Errorf("%s: %d clients are all answered by %s", scheduler, len(first), first[0])
			}
		})
	}
}

// askAll asks from each of the client's addresses, and returns the servers that answered.
func (r *rig) askAll(key balancer.Key) []string {
	r.Helper()
	var names []string
	for _, c := range r.w.clients {
		a, err := r.askFrom(r.w.client, c.of(key.Addr), key, atOnce)
		if err != nil {
			r.Fatalf("client %s asks %s: %v", c.of(key.Addr), key, err)
		}
		names = append(names, a.Server)
	}
	return names
}

func (r *rig) oneServerForAll(key balancer.Key) {
	r.Helper()
	if names := distinct(append(r.askAll(key), r.askAll(key)...)); len(names) != 1 {
		r.Errorf("dh: one VIP is answered by %v, want one server", names)
	}
}

func distinct(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
