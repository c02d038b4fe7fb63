package ipvs

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/wait"
)

// TestIPVSSuspects has a destination that refuses and one that is silent, and wants both told, and never the one that
// answers.
func TestIPVSSuspects(t *testing.T) {
	r := newRig(t)
	r.lab.Host().Route("10.2.0.9/32", "10.2.0.2") // where nobody has it, and nobody says so
	good, refuses, silent := netip.MustParseAddrPort("10.2.0.2:8080"), netip.MustParseAddrPort("10.2.0.3:8081"), netip.MustParseAddrPort("10.2.0.9:8080")
	f := &balancer.Frontend{
		Key: balancer.Key{Addr: vip(), Port: 80, Proto: balancer.TCP}, Service: "web", Port: "http",
		Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward},
	}
	for _, at := range []netip.AddrPort{good, refuses, silent} {
		f.Backends = append(f.Backends, balancer.Backend{Addr: at, State: balancer.Active, Weight: 1})
	}
	r.set(f)
	var mu sync.Mutex
	told := map[balancer.Target]int{}
	of := func(at netip.AddrPort) int {
		mu.Lock()
		defer mu.Unlock()
		return told[balancer.Target{Service: "web", Addr: at.Addr(), Port: at.Port()}]
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- r.d.Suspect(ctx, true, func(x dataplane.Suspicion) {
			mu.Lock()
			defer mu.Unlock()
			told[x.Target]++
		})
	}()
	wait.For(t, 20*time.Second, "both to be told", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if c, err := r.client.Dial(ctx, "tcp", netip.AddrPortFrom(vip(), 80).String()); err == nil {
			_ = c.Close()
		}
		return of(refuses) > 0 && of(silent) > 0
	})
	if n := of(good); n > 0 {
		t.Errorf("the one that answers was told %d times", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
