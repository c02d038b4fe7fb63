package store_test

import (
	"errors"
	"net/netip"
	"strconv"
	"testing"

	"vipd/balancer"
	"vipd/store"
)

func snapshot(weight int) store.Snapshot {
	var s store.Snapshot
	s.Connected = true
	s.Services = s.Services.Set("web", &balancer.Service{Name: "web", Endpoints: []balancer.Endpoint{{Weight: weight}}})
	s.Endpoints = s.Endpoints.Set(balancer.EndpointID{Service: "web", ID: "a"}, &balancer.Endpoint{Weight: weight})
	s.Overrides = s.Overrides.Set(balancer.Target{Service: "web", Addr: netip.MustParseAddr("10.0.0.1")}, &balancer.Override{Weight: &weight})
	vip := balancer.VIP{Addr: netip.MustParseAddr("10.96.0.1")}
	vip.Prefer = []string{strconv.Itoa(weight)}
	s.VIPs = s.VIPs.Set(vip.Addr, &vip)
	s.Pools = s.Pools.Set("blue", &balancer.Pool{Name: "blue", VIPPolicy: vip.VIPPolicy})
	return s
}

func TestKeeping(t *testing.T) {
	before := snapshot(1)
	if again := snapshot(1); again.Same(before) || !again.Keeping(before).Same(before) {
		t.Error("Keeping returned new pointers for equal values")
	}
	if other := snapshot(2); other.Keeping(before).Same(before) || !other.Keeping(before).Same(other) {
		t.Error("Keeping replaced values that differ")
	}
	if got := before.Keeping(store.Snapshot{}); !got.Same(before) {
		t.Error("Keeping with an empty earlier snapshot changed the snapshot")
	}
}

func TestSame(t *testing.T) {
	base := snapshot(1)
	for what, change := range map[string]func(*store.Snapshot){
		"a service":    func(s *store.Snapshot) { s.Services = s.Services.Delete("web") },
		"an endpoint":  func(s *store.Snapshot) { s.Endpoints = snapshot(1).Endpoints },
		"an override":  func(s *store.Snapshot) { s.Overrides = snapshot(1).Overrides },
		"an address":   func(s *store.Snapshot) { s.VIPs = snapshot(1).VIPs },
		"a pool":       func(s *store.Snapshot) { s.Pools = snapshot(1).Pools },
		"a problem":    func(s *store.Snapshot) { s.Problems = []balancer.Problem{{Text: "x"}} },
		"connectivity": func(s *store.Snapshot) { s.Connected = false },
		"an error":     func(s *store.Snapshot) { s.Err = errors.New("away") },
	} {
		other := base
		if change(&other); base.Same(other) || other.Same(base) {
			t.Errorf("after a change to %s: Same = true, want false", what)
		}
	}
	other := base
	other.Revision++
	if !base.Same(other) {
		t.Error("snapshots that differ only in the revision: Same = false, want true")
	}
}
