package vrrp_test

import (
	"testing"
	"time"

	"vipd/balancer/failover/vrrp"
)

// TestTimingInequalities checks all permitted intervals and numbers of down adverts. If an owner
// stops or can no longer send adverts, its gate must close before the fastest backup takes over.
// While a healthy owner's advert is late by less than an interval, the gate must stay open.
func TestTimingInequalities(t *testing.T) {
	check := func(g vrrp.Group) {
		a, k, gate := g.Interval, time.Duration(max(g.DownAdverts, 3)), vrrp.GateTime([]vrrp.Group{g})
		takes := g.DownTime(255, a)
		stopped := a + gate // time from the last advert until the gate closes, if the process stops just before the next advert
		switch {
		case takes <= k*a || g.DownTime(1, a) <= takes:
			t.Errorf("interval %s, k %d: down times of priorities 255 and 1 = %s and %s, want more than %s, and less for priority 255", a, k, takes, g.DownTime(1, a), k*a)
		case gate < 50*time.Millisecond || gate > vrrp.MaxGate:
			t.Errorf("interval %s: GateTime = %s, want 50ms to %s", a, gate, vrrp.MaxGate)
		case stopped >= takes-a:
			t.Errorf("interval %s, k %d: the gate closes %s after the last advert, want less than %s, which is an interval before a backup takes over", a, k, stopped, takes-a)
		case g.OwnerTime() >= takes:
			t.Errorf("interval %s, k %d: OwnerTime = %s, want less than %s, which is when a backup takes over", a, k, g.OwnerTime(), takes)
		case g.OwnerTime()-gate-a < a:
			t.Errorf("interval %s, k %d: an advert may be late by %s before the gate closes, want at least %s", a, k, g.OwnerTime()-gate-a, a)
		}
	}
	for k := 3; k <= 10; k++ {
		for a := 100 * time.Millisecond; a <= 40950*time.Millisecond; a += 10 * time.Millisecond {
			check(vrrp.Group{Version: 3, Interval: a, DownAdverts: k})
		}
		for a := time.Second; a <= 255*time.Second; a += time.Second {
			check(vrrp.Group{Version: 2, Interval: a, DownAdverts: k})
		}
	}
	check(vrrp.Group{Version: 3, Interval: 200 * time.Millisecond})
}

// TestSharedGate computes the GateTime of two groups with different intervals. The result must
// depend on the smaller interval.
func TestSharedGate(t *testing.T) {
	if got := vrrp.GateTime([]vrrp.Group{{Interval: time.Second}, {Interval: 200 * time.Millisecond}}); got != 100*time.Millisecond {
		t.Errorf("GateTime = %s, want 100ms", got)
	}
}
