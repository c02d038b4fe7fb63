package probe_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/dataplane/probe"
)

// flapper is a target, with a history of its weights and results. The function pass determines the
// results of its checks.
type flapper struct {
	pass func() bool

	mu      sync.Mutex
	results []bool // results of the target's checks, oldest first
	weights []weighed
}

// weighed is a target's weight, with the time at which the target got it.
type weighed struct {
	weight int
	at     time.Time
	after  int // number of results before the target got this weight
}

// flap checks the target for the duration last, and records its weights. Like the daemon, it
// compiles the service after each change to the verdicts.
func (f *flapper) flap(t *testing.T, h *balancer.Health, seed uint64, last time.Duration) {
	t.Helper()
	service := &balancer.Service{
		Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin}, Health: h,
		Ports:     []balancer.Port{{Port: 80, Protocol: balancer.TCP, TargetPort: 80}},
		Endpoints: []balancer.Endpoint{{Address: at(1).Addr(), Weight: 7}, {Address: at(2).Addr(), Weight: 7}},
	}
	env := balancer.Env{Capabilities: balancer.Capabilities{Protocols: []balancer.Protocol{balancer.TCP}, Forwards: []balancer.Forward{balancer.NATForward}}}
	in := balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", service)}
	wanted := new(health.Targets).Next(&balancer.Env{}, &in)
	var compiler balancer.Compiler
	var r *probe.Runner
	compile := func([]probe.Transition) {
		in.Health = r.Verdicts()
		frontend := compiler.Next(env, in, time.Now()).Frontends.At(balancer.Key{Addr: service.VIPs[0], Port: 80, Proto: balancer.TCP})
		f.mu.Lock()
		defer f.mu.Unlock()
		weight := frontend.Backends[0].Weight
		if n := len(f.weights); n == 0 || f.weights[n-1].weight != weight {
			f.weights = append(f.weights, weighed{weight, time.Now(), len(f.results)})
		}
	}
	r = probe.NewRunner(probe.Options{Report: compile, Seed: seed, Check: func(_ context.Context, _ *probe.Probe, where netip.AddrPort) health.Result {
		if where != at(1) {
			return health.Result{Outcome: health.Passed, Began: time.Now()}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		outcome := health.Failed
		if f.results = append(f.results, f.pass()); f.results[len(f.results)-1] {
			outcome = health.Passed
		}
		return health.Result{Outcome: outcome, Began: time.Now()}
	}})
	ctx, cancel := context.WithTimeout(t.Context(), last)
	defer cancel()
	r.Set(wanted)
	r.Run(ctx)
}

// TestFlapping checks a target whose results change often. The target's weight may change only
// after rise consecutive passes or fall consecutive failures.
func TestFlapping(t *testing.T) {
	h := usual(func(h *balancer.Health) { h.Rise, h.Fall = 2, 3 })
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			f := &flapper{pass: func() bool { return rng.IntN(2) == 0 }}
			f.flap(t, h, seed, 10*time.Minute)
			f.lawful(t, h, seed)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := 0
		f := &flapper{pass: func() bool { n++; return n%3 == 1 }} // at most two failures in a row, and never two passes
		f.flap(t, h, 1, time.Hour)
		if len(f.weights) != 1 || f.weights[0].weight != 7 || len(f.results) < 1000 {
			t.Errorf("two failures in a row, %d checks: weights = %v, want only 7", len(f.results), f.weights)
		}
	})
}

// lawful checks that each change of the weight follows enough equal results.
func (f *flapper) lawful(t *testing.T, h *balancer.Health, seed uint64) {
	t.Helper()
	if len(f.weights) < 10 {
		t.Fatalf("seed %d: changes of the weight = %d in %d checks, want at least 10", seed, len(f.weights), len(f.results))
	}
	for i, w := range f.weights[1:] {
		needed := h.Rise
		if w.weight == 0 {
			needed = h.Fall
		}
		before := f.weights[i]
		if w.after-before.after < needed {
			t.Errorf("seed %d: the weight changes to %d after %d results, want at least %d results", seed, w.weight, w.after-before.after, needed)
		}
		if gap, least := w.at.Sub(before.at), time.Duration(needed-1)*h.FastInterval*9/10; gap < least {
			t.Errorf("seed %d: the weight changes to %d after %v, want at least %v", seed, w.weight, gap, least)
		}
		for _, passed := range f.results[w.after-needed : w.after] {
			if passed != (w.weight > 0) {
				t.Errorf("seed %d: weight = %d after results %v, want it to match the results", seed, w.weight, f.results[w.after-needed:w.after])
			}
		}
	}
}
