package probe_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/probe"
	"vipd/balancer/snap"
)

// spread asks for checks of n targets of one service at so many addresses.
func spread(n, addresses int, h *balancer.Health) (m snap.Map[balancer.Target, health.Subject], all []netip.AddrPort) {
	for i := range n {
		where := netip.AddrPortFrom(at(i%addresses).Addr(), uint16(1000+i/addresses))
		m = m.Set(balancer.Target{Service: "web", Addr: where.Addr(), Port: where.Port()}, health.Subject{At: where, Proto: balancer.TCP, Health: h})
		all = append(all, where)
	}
	return m, all
}

// TestDownTogether: 
func TestDownTogether(t *testing.T) {
	for _, addresses := range []int{1, 10, 1000} {
		for _, takes := range []time.Duration{0, 300*time.Millisecond, time.Second} {
			for seed := range uint64(3) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					r, stop := w.start(probe.Options{Seed: seed})
					defer stop()
					m, all := spread(1000, addresses, usual(nil))
					r.Set(m)
					time.Sleep(time.Minute + time.Duration(seed)*700*time.Millisecond)
					w.reported()
					w.mu.Lock()
					for _, a := range all {
						w.broken[a], w.takes[a] = true, takes
					}
					w.mu.Unlock()
					began := time.Now()
					text := ""
					n := 0
					for n < 1000 && time.Since(began) < 10*time.Second {
						time.Sleep(time.Millisecond)
						for _, r := range w.reported() {
							n += len(r)
							text += fmt.Sprintf(" %d@%v", len(r), time.Since(began).Round(10*time.Millisecond))
						}
					}
					t.Logf("%d addresses, takes %v: %s", addresses, takes, text)
				})
			}
		}
	}
}
