package dnat

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

// TestSuspects makes one of two endpoints refuse connections, and then drop them silently. Only
// this endpoint may be reported.
func TestSuspects(t *testing.T) {
	r := newRig(t)
	r.apply(r.web(balancer.TCP, 2, 3))
	var mu sync.Mutex
	told := map[balancer.Target]int{}
	of := func(i int) int {
		mu.Lock()
		defer mu.Unlock()
		return told[balancer.Target{Service: "web", Addr: r.address(i), Port: 8080}]
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- r.tracker.WatchUnanswered(ctx, true, func(x dataplane.FailedConnect) {
			mu.Lock()
			defer mu.Unlock()
			told[x.Target]++
		})
	}()
	try := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if c, err := r.client.Dial(ctx, "tcp", netip.AddrPortFrom(vip(), 80).String()); err == nil {
			_ = c.Close()
		}
	}
	for _, how := range [][]string{{"REJECT", "--reject-with", "tcp-reset"}, {"DROP"}} {
		before := of(3)
		r.server.Exec("iptables", append([]string{"-A", "INPUT", "-p", "tcp", "-d", "10.2.0.3", "-j"}, how...)...)
		wait.For(t, 2*time.Minute, "a report about endpoint 3 after "+how[0], func() bool { try(); return of(3) > before })
		r.server.Exec("iptables", "-F", "INPUT")
	}
	if n := of(2); n > 0 {
		t.Errorf("reports about endpoint 2 = %d, want 0 because it answers", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
