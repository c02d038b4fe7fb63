package vrrp_test

import (
	"testing"
	"time"

	"vipd/balancer/failover/vrrp"
)

// TestTimingInequalities checks all legal intervals and numbers of down adverts. If an owner stops
// or can no longer send adverts, its gate must close before the fastest backup takes over. A
// healthy owner's advert may be late by a whole interval before the gate closes.
func TestTimingInequalities(t *testing.T) {
	check := func(g vrrp.Group) {
		a, k, gate := g.Interval, time.Duration(max(g.DownAdverts, 3)), vrrp.GateTime([]vrrp.Group{g})
		takes := g.DownTime(255, a)
		stopped := a + gate // after the last advert, if the process stops just before the next
		switch {
		case takes <= k*a || g.DownTime(1, a) <= takes:
			t.Errorf("%s, k %d: down times %s and %s, want more than %s, and less for a higher priority", a, k, takes, g.DownTime(1, a), k*a)
		case gate < 50*time.Millisecond || gate > vrrp.MaxGate:
			t.Errorf("%s: gate %s, want 50ms to %s", a, gate, vrrp.MaxGate)
		case stopped >= takes-a:
			t.Errorf("%s, k %d: the gate closes %s after the last advert, want less than %s, or each lost advert closes it", a, k, stopped, takes-a)
		case g.OwnerTime() >= takes:
			t.Errorf("%s, k %d: owner time %s, want less than %s", a, k, g.OwnerTime(), takes)
		case g.OwnerTime()-gate-a < a:
			t.Errorf("%s, k %d: an advert may be late by %s, want at least %s", a, k, g.OwnerTime()-gate-a, a)
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

// TestSharedGate computes the gate's time for groups with two intervals. It must depend on the
// smaller interval.
func TestSharedGate(t *testing.T) {
	if got := vrrp.GateTime([]vrrp.Group{{Interval: time.Second}, {Interval: 200 * time.Millisecond}}); got != 100*time.Millisecond {
		t.Errorf("GateTime = %s, want 100ms", got)
	}
}
