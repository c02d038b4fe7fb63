package storetest_test

import (
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Place { return place{storetest.NewMemory()} })
}

type place struct{ source *storetest.Memory }

func (p place) Source() store.Source { return p.source }

func (p place) Write(name balancer.Name, fields map[string]any) { p.source.Define(name, fields, nil) }

func (p place) Delete(name balancer.Name) { p.source.Delete(name) }

func (place) Paused() bool { return false }

func TestMemoryKeepsEqualValues(t *testing.T) {
	s := storetest.NewMemory()
	id := balancer.EndpointID{Service: "web", ID: "a"}
	target := balancer.Target{Service: "web", Addr: netip.MustParseAddr("192.168.1.1")}
	endpoint, override := &balancer.Endpoint{Weight: 1}, &balancer.Override{By: "me"}
	s.SetEndpoint(id, endpoint)
	s.SetOverride(target, override)
	before := s.Snapshot()
	if before.Endpoints.At(id) != endpoint || before.Overrides.At(target) != override {
		t.Fatalf("got endpoint %v and override %v", before.Endpoints.At(id), before.Overrides.At(target))
	}
	s.SetEndpoint(id, &balancer.Endpoint{Weight: 1})
	s.SetOverride(target, &balancer.Override{By: "me"})
	if after := s.Snapshot(); after.Revision != before.Revision || !after.Same(before) || after.Endpoints.At(id) != endpoint {
		t.Errorf("equal values made another state: %+v, before %+v", after, before)
	}
	s.DeleteEndpoint(id)
	s.DeleteOverride(target)
	if after := s.Snapshot(); after.Endpoints.Len() != 0 || after.Overrides.Len() != 0 || after.Revision != before.Revision+2 {
		t.Errorf("after deleting both: %+v", after)
	}
}
